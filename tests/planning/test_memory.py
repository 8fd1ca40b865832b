"""Bytes of caches, logits, optimizers and passes, against real tensors."""

from dataclasses import replace

import pytest
import torch

from lightning_cgrpo import CausalLMPolicy
from lightning_cgrpo.planning.activations import Arithmetic, Row
from lightning_cgrpo.planning.execution import Execution, optimizer_state
from lightning_cgrpo.planning.memory import cache_bytes, language_model_memory, logits_kept, standing
from lightning_cgrpo.planning.sizes import language_model_sizes
from lightning_cgrpo.planning.workload import Workload
from lightning_cgrpo.policies.shared_prefix import decoding, log_probs
from lightning_cgrpo.policies.tiny.text import make_tiny_model
from lightning_cgrpo.samplers.engine import Sampling
from lightning_cgrpo.samplers.transformers_engine import TransformersEngine

FLOAT = Arithmetic(4, autocast=False, cuda=False)
WORK = Workload(
    prompts=2, all_prompts=4, group_size=3, prompt_tokens=50, answer_tokens=70, passes=((3, 3),), epochs=1,
    reference_passes=(3, 3), old_passes=(), generated=2, samples=True,
)  # fmt: skip
ALONE = Execution(1, "cpu", False, "none", "auto", 2.0, "single")


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    made = CausalLMPolicy(str(make_tiny_model(tmp_path_factory.mktemp("model") / "m", layers=3)))
    made.load()
    return made


@pytest.fixture(scope="module")
def sizes(policy):
    return language_model_sizes(policy)


@pytest.mark.parametrize("answer_tokens", [30, 65, 70])
def test_the_cache_is_that_of_a_rollout(policy, sizes, monkeypatch, answer_tokens):
    found = []

    class Spy(decoding.Decoding):
        def _continue(self, layer, *arguments):
            result = super()._continue(layer, *arguments)
            held = [tensor.untyped_storage() for of in self._layers.values() for tensor in vars(of).values()]
            found.append(sum({storage.data_ptr(): storage.nbytes() for storage in held}.values()))
            return result

    monkeypatch.setattr("lightning_cgrpo.samplers.transformers_engine.Decoding", Spy)
    prompts = [torch.randint(5, 200, (WORK.prompt_tokens,)).tolist() for _ in range(2)]
    sampling = Sampling(answer_tokens, min_new_tokens=answer_tokens)
    TransformersEngine().generate(policy, prompts, 3, sampling, torch.rand(2, 3, answer_tokens, dtype=torch.float64))
    work = replace(WORK, answer_tokens=answer_tokens)
    assert cache_bytes(sizes, work, FLOAT, shared=True) == max(found)


def test_the_cache_without_sharing_is_that_of_transformers(policy, sizes):
    cache = policy.new_cache()
    ids = torch.randint(5, 200, (6, 50 + 69))
    with torch.no_grad():
        policy.logits(ids, torch.ones_like(ids).bool(), keep=1, cache=cache)
    held = sum(t.numel() * t.element_size() for layer in cache.layers for t in (layer.keys, layer.values))
    assert cache_bytes(sizes, WORK, FLOAT, shared=False) == held


@pytest.mark.parametrize("rows", [4, 1000])
def test_logits_kept(sizes, monkeypatch, rows):
    """Probabilities of a single chunk are kept, those of several are not."""
    monkeypatch.setattr("lightning_cgrpo.planning.memory.chunk_rows", lambda vocabulary, device: rows)
    row = Row(2, 6, 50, 3)
    hidden = torch.randn(row.predicted, sizes.decoder.width, requires_grad=True)
    weight = torch.randn(sizes.vocabulary, sizes.decoder.width)
    kept = {}
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.setdefault(t.data_ptr(), t), lambda t: t):
        log_probs.linear_log_probs(hidden, weight, torch.zeros(row.predicted, dtype=torch.int64), 1.0, rows)
    of_vocabulary = [t for t in kept.values() if t.shape == (row.predicted, sizes.vocabulary)]
    assert logits_kept(sizes, row, FLOAT) == sum(t.numel() * 4 for t in of_vocabulary)


@pytest.mark.parametrize(
    ("make", "state", "how"),
    [
        (torch.optim.AdamW, 2, "single"),
        (lambda p: torch.optim.AdamW(p, amsgrad=True), 3, "single"),
        (lambda p: torch.optim.Adam(p, fused=True), 2, "fused"),
        (lambda p: torch.optim.SGD(p, lr=1), 0, "single"),
        (lambda p: torch.optim.SGD(p, lr=1, momentum=0.9), 1, "single"),
    ],
)
def test_what_optimizers_keep(make, state, how):
    class Module:
        make_optimizer = staticmethod(make)

    assert optimizer_state(Module(), cpu=True) == (state, how)
    assert optimizer_state(Module(), cpu=False)[1] == ("fused" if how == "fused" else "foreach")


@pytest.mark.parametrize("autocast", [False, True])
def test_20_bytes_a_parameter_alone_24_in_replicas_and_shares_of_20(sizes, autocast):
    """Float32 weights with AdamW and a reference, whose linear weights autocast halves if they are no embeddings."""
    count = sizes.parameters
    linear = 2 * sizes.decoder.layers * sizes.decoder.linear if autocast else 0  # `sizes` is tied

    def all_of(sharding, gpus):
        how = Execution(gpus, "cuda", autocast, sharding, "x", 2.0, "foreach")
        return sum(standing(sizes, how, reference=True).values()) + sizes.trainable_bytes // (
            gpus if sharding == "fsdp" else 1
        )

    assert all_of("none", 1) == 20 * count - linear
    assert all_of("ddp", 8) == 24 * count - linear
    assert all_of("fsdp", 8) == pytest.approx(20 * count / 8, abs=8)


def test_no_reference_without_kl_or_with_adapters(sizes):
    assert standing(sizes, ALONE, reference=False)["reference"] == 0
    assert standing(replace(sizes, trains_base=False), ALONE, reference=True)["reference"] == 0


def test_phases_follow_the_settings(sizes):
    def peak(work=WORK, how=ALONE, checkpointed=False):
        return language_model_memory(sizes, work, how, checkpointed)

    usual = peak()
    assert list(usual.phases) == ["rollout", "reference", "backward begins", "backward ends", "optimizer step"]
    assert usual.peak == max(usual.totals.values())
    assert "reference" not in peak(replace(WORK, reference_passes=())).phases
    assert "rollout" not in peak(replace(WORK, generated=0)).phases
    assert peak(checkpointed=True).totals["backward begins"] < usual.totals["backward begins"]
    larger = peak(replace(WORK, passes=((6,),)))
    assert larger.phases["backward begins"]["activations"] > usual.phases["backward begins"]["activations"]
    half = Execution(2, "cuda", False, "fsdp", "fsdp2", 2.0, "foreach")
    assert peak(how=half).phases["rollout"]["weights"] == -(-usual.phases["rollout"]["weights"] // 2)
    assert peak(how=half).phases["rollout"]["unsharded weights"] == sizes.weight_bytes
