"""Products in oneDNN's arrangement: PyTorch's numbers, in rollouts alone."""

import pytest
import torch
from torch import nn

from lightning_cgrpo import CausalLMPolicy
from lightning_cgrpo.policies import onednn
from lightning_cgrpo.policies.onednn import CLOSE, arranged_weights
from lightning_cgrpo.policies.pretrained import LoRA
from lightning_cgrpo.policies.tiny.text import make_tiny_model
from lightning_cgrpo.samplers.engine import Sampling
from lightning_cgrpo.samplers.transformers_engine import TransformersEngine

PROMPTS, GROUP_SIZE, LENGTH = [[5, 6, 7], [8, 9, 10, 11]], 4, 12
FEW = 500  # weights of a large layer in these tests


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", hidden_size=32)


@pytest.fixture
def calls(monkeypatch):
    """Rows of each product in oneDNN's arrangement."""
    assert all(onednn._works(dtype) for dtype in CLOSE), "on this machine"
    monkeypatch.setattr(onednn, "FEWEST", FEW)
    rows, product = [], onednn._product

    def counted(states, *others):
        rows.append(states.shape[-2])
        return product(states, *others)

    monkeypatch.setattr(onednn, "_product", counted)
    return rows


def loaded(directory, **options):
    policy = CausalLMPolicy(str(directory), **options)
    policy.load()
    return policy


def linears(policy):
    return [module for module in policy.modules() if isinstance(module, nn.Linear)]


def logits(policy):
    """Logits after the prompts, and after a token of each answer."""
    inputs = policy.padded(PROMPTS)
    tokens = torch.arange(20, 20 + len(PROMPTS) * GROUP_SIZE)
    with torch.no_grad():
        continuation = policy.continuation(inputs, inputs["prompt_mask"].sum(-1), GROUP_SIZE, LENGTH)
        return torch.cat([continuation.read(), continuation.next(None, tokens)]).float()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shares", [True, False])
def test_logits_are_equal_to_rounding(directory, calls, dtype, shares):
    policy = loaded(directory, dtype=dtype, share_prompts=shares)
    expected = logits(policy)
    assert not calls
    with arranged_weights(policy):
        found = logits(policy)
    layers = sum(layer.weight.numel() >= FEW for layer in linears(policy))
    assert len(calls) == 2 * layers, "prompts and a step, with the output layer"
    close = CLOSE[getattr(torch, dtype)]
    torch.testing.assert_close(found, expected, rtol=close, atol=close)


def test_greedy_answers_are_equal(directory, calls):
    policy = loaded(directory)
    draws, sampling = torch.full((len(PROMPTS), GROUP_SIZE, LENGTH), 0.5), Sampling(LENGTH, top_k=1)
    inputs, engine = policy.padded(PROMPTS), TransformersEngine()
    expected = engine.generate(policy, inputs, GROUP_SIZE, sampling, draws)
    assert not calls
    with engine.session(policy):
        found = engine.generate(policy, inputs, GROUP_SIZE, sampling, draws)
    assert calls and torch.equal(found.actions, expected.actions) and torch.equal(found.mask, expected.mask)


def test_afterwards_weights_may_change(directory, calls):
    policy = loaded(directory)
    before = logits(policy)
    with arranged_weights(policy):
        pass
    assert not any("forward" in layer.__dict__ for layer in linears(policy))
    with torch.no_grad():
        for layer in linears(policy):
            layer.weight.mul_(1.5)
    changed = logits(policy)
    assert not torch.allclose(changed, before)
    with arranged_weights(policy):
        torch.testing.assert_close(logits(policy), changed, rtol=1e-4, atol=1e-4)


def test_adapters_are_added(directory, calls):
    pytest.importorskip("peft")
    policy = loaded(directory, lora=LoRA(rank=4, alpha=16))
    with torch.no_grad():
        for name, weight in policy.named_parameters():
            if ".lora_" in name:
                weight.normal_(std=0.1, generator=torch.Generator().manual_seed(0))
    expected = logits(policy)
    with arranged_weights(policy):
        torch.testing.assert_close(logits(policy), expected, rtol=1e-4, atol=1e-4)
    assert calls


def test_passes_with_gradients_read_the_weights_themselves(directory, calls):
    policy = loaded(directory)
    ids = torch.tensor([[5, 6, 7]])
    with arranged_weights(policy):
        policy.model(input_ids=ids).logits.sum().backward()
    assert not calls and all(layer.weight.grad is not None for layer in linears(policy))


def test_without_onednn_pytorch_multiplies(directory, calls, monkeypatch):
    def missing(*arguments):
        raise AttributeError("'_OpNamespace' 'mkldnn' object has no attribute '_reorder_linear_weight'")

    policy = loaded(directory)
    expected = logits(policy)
    onednn._works.cache_clear()
    monkeypatch.setattr(onednn, "_product", missing)
    try:
        with arranged_weights(policy):
            assert torch.equal(logits(policy), expected)
    finally:
        onednn._works.cache_clear()
