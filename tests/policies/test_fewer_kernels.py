"""Training passes with fused norms and rotations: transformers' numbers, in fewer kernels, counted on meta tensors."""

from contextlib import ExitStack

import pytest
import torch
from torch.overrides import TorchFunctionMode
from transformers import Qwen2Config, Qwen2ForCausalLM

from lightning_cgrpo.policies.causal_lm import CausalLMPolicy, LoRA
from lightning_cgrpo.policies.computations import packed
from lightning_cgrpo.policies.shared_prefix import attention, cast_products, fewer_kernels
from lightning_cgrpo.policies.shared_prefix.attention import PackedAttention
from lightning_cgrpo.policies.shared_prefix.cast_products import cast_together
from lightning_cgrpo.policies.shared_prefix.fewer_kernels import FewerKernels
from lightning_cgrpo.policies.shared_prefix.layout import Layout
from lightning_cgrpo.policies.shared_prefix.log_probs import _LinearLogProbs, chunk_rows
from lightning_cgrpo.policies.shared_prefix.support import share_attention
from tests.policies import causal_families
from tests.policies.small_policies import TEMPERATURE, ragged
from tests.policies.test_causal_lm import SHARED, build, gradients
from tests.samplers.test_kernels import Kernels

LAYERS, VOCABULARY = 28, 151_936
MOST, MOST_OF_TRANSFORMERS = 2_400, 4_600


@pytest.mark.parametrize("family", [*SHARED[:2], *(pytest.param(name, marks=pytest.mark.slow) for name in SHARED[2:])])
def test_values_and_gradients_are_those_of_transformers(family, tokenizer, monkeypatch):
    policy = CausalLMPolicy.from_model(build(family), tokenizer, temperature=TEMPERATURE)
    examples = policy.examples(ragged())
    found = []
    for kinds in (set(), {"cpu"}):
        monkeypatch.setattr(packed, "FEWER_KERNELS", kinds)
        output = policy(examples)
        loss = ((output.log_probs + 0.1 * output.entropy) * examples.mask).sum()
        found.append((output.log_probs * examples.mask, gradients(policy, loss)))
    (expected, of_expected), (values, of_values) = found
    torch.testing.assert_close(values, expected, rtol=0, atol=1e-9)
    torch.testing.assert_close(of_values, of_expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("lora", [None, LoRA(rank=2)])
def test_under_autocast_values_stay_and_gradients_differ_by_rounding(lora, tokenizer, monkeypatch):
    """Norms are rounded once, instead of once for each layer that reads them, and so are their gradients."""
    model = causal_families.build("qwen2")
    policy = CausalLMPolicy.from_model(model, tokenizer, temperature=TEMPERATURE, lora=lora)
    for name, weight in policy.named_parameters():
        if "lora_B" in name:  # which begins at 0
            torch.nn.init.normal_(weight, generator=torch.Generator().manual_seed(0))
    examples, found = policy.examples(ragged()), []
    for kinds in (set(), {"cpu"}):
        monkeypatch.setattr(packed, "FEWER_KERNELS", kinds)
        with torch.autocast("cpu", torch.bfloat16):
            values = policy(examples).log_probs * examples.mask
        found.append((values, torch.cat([one.flatten() for one in gradients(policy, values.sum())])))
    (expected, of_expected), (values, of_values) = found
    torch.testing.assert_close(values, expected, rtol=0, atol=1e-3 if lora is None else 1e-2)
    assert 0 < (of_values - of_expected).norm() < 0.02 * of_expected.norm()


def test_layers_that_recompute_keep_the_norms_of_transformers(tokenizer, monkeypatch):
    """They recompute outside of the context."""
    policy = CausalLMPolicy.from_model(build("qwen2"), tokenizer, gradient_checkpointing=True)
    policy.train()
    examples = policy.examples(ragged())
    expected = policy(examples).log_probs
    monkeypatch.setattr(packed, "FEWER_KERNELS", {"cpu"})
    found = policy(examples).log_probs
    found.sum().backward()
    assert torch.equal(found, expected)


class MetaAutocast(TorchFunctionMode):
    """Casts the factors of products, as CUDA's autocast does."""

    PRODUCTS = (torch.nn.functional.linear, torch.matmul, torch.Tensor.matmul)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in self.PRODUCTS:
            args = [given.to(torch.bfloat16) if isinstance(given, torch.Tensor) else given for given in args]
        return func(*args, **(kwargs or {}))


def counting(kernels):
    """Stand-ins for the norm and the flash kernel on a GPU: one kernel forward, and three and one backward."""

    class Norm(torch.autograd.Function):
        @staticmethod
        def forward(ctx, states, weight):
            ctx.save_for_backward(states, weight)
            kernels.count += 1
            return torch.empty_like(states)

        @staticmethod
        def backward(ctx, gradient):
            kernels.count += 3
            return tuple(map(torch.empty_like, ctx.saved_tensors))

    class Flash:
        def forward(self, query, key, value, part):
            kernels.count += 1
            return torch.empty_like(query), query.new_empty(query.shape[1], len(query), dtype=torch.float32)

        def backward(self, gradient, query, key, value, attended, norm, part):
            kernels.count += 1
            return tuple(map(torch.empty_like, (query, key, value)))

    return lambda states, shape, weight, epsilon: Norm.apply(states, weight), Flash


def kernels_of_a_pass(fewer, monkeypatch):
    """Kernels of a pass of 8 answers, forward and backward, with 256 tokens each after a prompt of 256."""
    config = Qwen2Config(
        hidden_size=1536, intermediate_size=8960, num_hidden_layers=LAYERS, num_attention_heads=12,
        num_key_value_heads=2, vocab_size=VOCABULARY, tie_word_embeddings=True,
    )  # fmt: skip
    with torch.device("meta"):
        model = Qwen2ForCausalLM._from_config(config).eval()
    share_attention(model)
    replaced = FewerKernels(model)  # tries norms and rotations
    kernels = Kernels()
    norm, flash = counting(kernels)
    layout = Layout.of(torch.tensor([256]), torch.full((8,), 256), torch.zeros(8, dtype=torch.int64), device="meta")
    ids = torch.zeros(layout.position_ids.shape[1], dtype=torch.int64, device="meta")
    policy = CausalLMPolicy("meta")
    policy.model = model
    with monkeypatch.context() as patch:
        patch.setattr(attention, "runs_flash", lambda query: True)
        patch.setattr(attention, "Flash", flash)
        patch.setattr(fewer_kernels, "rms_norm", norm)
        patch.setattr(cast_products, "WIDER", {"meta"})
        patch.setattr(torch, "is_autocast_enabled", lambda kind=None: kind == "meta")
        patch.setattr(torch, "get_autocast_dtype", lambda kind: torch.bfloat16)
        with MetaAutocast(), kernels, ExitStack() as stack:
            if fewer:
                stack.enter_context(replaced.used(training=True))
                stack.enter_context(cast_together(model, torch.bfloat16))
            states = policy.hidden(ids, layout.position_ids, PackedAttention(layout))[layout.predictors]
            weight, actions = policy.output_weight, torch.zeros(len(states), dtype=torch.int64, device="meta")
            factors = states.to(torch.bfloat16), weight, weight.detach().to(torch.bfloat16)
            values = _LinearLogProbs.apply(*factors, actions, 1.0, chunk_rows(VOCABULARY, "cuda"))
            torch.stack(values).sum().backward()
    return kernels.count


@pytest.mark.parametrize(
    ("fewer", "most"), [(True, MOST), pytest.param(False, MOST_OF_TRANSFORMERS, marks=pytest.mark.slow)]
)
def test_a_training_pass_has_fewer_kernels(fewer, most, monkeypatch):
    count = kernels_of_a_pass(fewer, monkeypatch)
    print(f"kernels of a training pass of 8 answers, {LAYERS} layers, {'ours' if fewer else 'transformers'}: {count:,}")
    assert 0.95 * most < count <= most
