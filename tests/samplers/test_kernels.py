"""Kernels of a decoded step: counted on the CPU beside transformers' `generate`, and for a graph on meta tensors."""

import copy

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

from lightning_cgrpo import CausalLMPolicy
from lightning_cgrpo.policies.shared_prefix import pages
from lightning_cgrpo.policies.shared_prefix.step_sizes import StepSizes
from lightning_cgrpo.policies.shared_prefix.support import share_attention
from lightning_cgrpo.policies.tiny.text import make_tiny_model
from lightning_cgrpo.samplers.engine import Sampling
from lightning_cgrpo.samplers.paged_step import PagedStep
from lightning_cgrpo.samplers.transformers_engine import TransformersEngine

LAYERS, PROMPTS, GROUP_SIZE = 28, 2, 4
FIRST, LAST = 2, 4
MOST = 800
MOST_OF_A_GRAPH = 600
ALLOCATIONS = {"aten::empty", "aten::new_empty", "aten::empty_like", "aten::empty_strided"}
NO_KERNEL = ALLOCATIONS | {
    "aten::_unsafe_view", "aten::_reshape_alias", "aten::_local_scalar_dense", "aten::promote_types",
}  # fmt: skip


class Norms(TorchFunctionMode):
    """Notes calls of PyTorch's norm, one kernel on a GPU, which a CPU computes in small operations."""

    def __init__(self, kernels):
        super().__init__()
        self.kernels = kernels

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func not in (torch.rms_norm, torch.nn.functional.rms_norm):
            return func(*args, **(kwargs or {}))
        before = self.kernels.count
        result = func(*args, **(kwargs or {}))
        self.kernels.count = before + 1
        return result


class Kernels(TorchDispatchMode):
    """Counts operations that compute: neither views nor allocations."""

    def __init__(self):
        super().__init__()
        self.count = 0
        self.norms = Norms(self)

    def __enter__(self):
        self.norms.__enter__()
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self.norms.__exit__(*error)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._foreach_copy_.default:
            self.count += launches(args[0])
            return func(*args, **(kwargs or {}))
        views = any(made.alias_info is not None and not made.alias_info.is_write for made in func._schema.returns)
        self.count += not views and func._schema.name not in NO_KERNEL
        return func(*args, **(kwargs or {}))


def launches(copies):
    """Kernels of a copy into several tensors: PyTorch's take 64 tensors, or 320 pieces of 65,536 numbers."""
    kernels = tensors = pieces = 0
    for made in copies:
        tensors += 1
        for _ in range(-(-made.numel() // 65_536)):
            pieces += 1
            if pieces == 320:
                kernels, pieces, tensors = kernels + 1, 0, 1
        if tensors == 64:
            kernels, pieces, tensors = kernels + 1, 0, 0
    return kernels + bool(pieces)


def each_step(generate):
    counts = []
    for length in (FIRST, LAST):
        with torch.no_grad(), Kernels() as kernels:
            generate(length)
        counts.append(kernels.count)
    return (counts[1] - counts[0]) / (LAST - FIRST)


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    directory = tmp_path_factory.mktemp("model")
    make_tiny_model(directory)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    config = Qwen2Config(
        vocab_size=2048,  # sampled in blocks, as a real model's
        hidden_size=32, intermediate_size=64, num_hidden_layers=LAYERS, num_attention_heads=4, num_key_value_heads=2,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, bos_token_id=None,
    )  # fmt: skip
    return CausalLMPolicy.from_model(Qwen2ForCausalLM(config).eval(), tokenizer)


@pytest.fixture(scope="module")
def theirs(policy):
    """Kernels of a step of transformers' `generate`."""

    def generate(length):
        tokens = torch.tensor([[5, 6, 7, 8]] * PROMPTS * GROUP_SIZE)
        sampling = {"do_sample": True, "top_k": 0, "top_p": 1.0, "min_new_tokens": length, "max_new_tokens": length}
        policy.model.generate(tokens, attention_mask=torch.ones_like(tokens), **sampling)

    return each_step(generate)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_a_decoded_step_takes_fewer_kernels_than_generate(policy, theirs, precision):
    """Under bf16-mixed, too, because a rollout's copy of the weights is in bfloat16."""
    engine = TransformersEngine()

    def ours(length):
        draws = torch.rand(PROMPTS, GROUP_SIZE, length)
        sampling = Sampling(length, min_new_tokens=length)
        inputs = policy.padded([[5, 6, 7], [8, 9, 10, 11]])
        with torch.autocast("cpu", torch.bfloat16, precision == "bf16-mixed"), engine.session(policy):
            engine.generate(policy, inputs, GROUP_SIZE, sampling, draws)

    count = each_step(ours)
    print(f"kernels of a decoded step, {LAYERS} layers: {count:.0f}, transformers' generate {theirs:.0f}")
    assert count <= MOST and count < theirs


@pytest.mark.skipif(not pages.takes_pages(), reason="torch before 2.13 gathers the pages")
@pytest.mark.parametrize(
    ("name", "sizes"), [("0.5B", (896, 4864, 24, 14)), ("1.5B", (1536, 8960, 28, 12))], ids=["0.5B", "1.5B"]
)
def test_a_graph_has_few_kernels_for_a_token_of_all_answers(policy, monkeypatch, name, sizes):
    """Of Qwen2.5's sizes on meta tensors, with the choice of the token; a norm counts as one, as on a GPU."""
    monkeypatch.setattr(pages, "runs_flash", lambda query: True)
    monkeypatch.setattr(pages, "_kernel_works", lambda *arguments: True)
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind: False)  # meta tensors have none
    hidden, between, layers, heads = sizes
    config = Qwen2Config(
        hidden_size=hidden, intermediate_size=between, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=2, vocab_size=151_936, eos_token_id=0, pad_token_id=1, bos_token_id=None,
    )  # fmt: skip
    large = copy.copy(policy)
    with torch.device("meta"):
        model = Qwen2ForCausalLM._from_config(config, dtype=torch.bfloat16).eval()
        share_attention(model)
        large._modules = {"model": model}
        step = PagedStep(large, Sampling(256, min_new_tokens=2), StepSizes(slots=128, columns=4, pages=513, page=256))
        step.logits = torch.zeros(128, 151_936, dtype=torch.bfloat16)
        pool = torch.zeros(513, 256, 2, hidden // heads, dtype=torch.bfloat16)
    step.pages.pools = dict.fromkeys(range(layers), (pool, pool))
    with torch.no_grad(), Kernels() as kernels:
        step._step()
    print(f"kernels of a token of all answers, {name}, {layers} layers: {kernels.count}")
    assert 15 * layers < kernels.count <= MOST_OF_A_GRAPH
