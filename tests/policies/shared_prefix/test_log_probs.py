"""Log-probabilities, entropies and KL in chunks equal those of all logits at once."""

import inspect

import pytest
import torch
from torch._meta_registrations import meta_mm
from torch._subclasses.fake_tensor import FakeTensorMode

from lightning_cgrpo.grpo.losses import k3
from lightning_cgrpo.policies.shared_prefix.log_probs import _scaled_logits, linear_log_probs

M, D, V = 11, 6, 50


def problem(dtype=torch.float64):
    draw = torch.Generator().manual_seed(0)
    hidden = torch.randn(M, D, generator=draw, dtype=torch.float64).to(dtype).requires_grad_()
    weight = torch.randn(V, D, generator=draw, dtype=torch.float64).to(dtype).requires_grad_()
    return hidden, weight, torch.randint(V, (M,), generator=draw)


def plain(hidden, weight, actions, temperature, reference):
    log_p, log_q = ((h @ w.T / temperature).log_softmax(-1) for h, w in ((hidden, weight), reference))
    entropy, kl = -(log_p.exp() * log_p).sum(-1), (log_p.exp() * (log_p - log_q)).sum(-1)
    return log_p.gather(-1, actions[:, None])[:, 0], entropy, kl


@pytest.mark.parametrize("rows", [1, 3, 11, 100])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("wanted", [(1, 1, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 1)])
def test_equals_all_at_once(rows, temperature, wanted):
    hidden, weight, actions = problem()
    reference = tuple(tensor.detach().flip(0) for tensor in (hidden, weight))
    ours = linear_log_probs(hidden, weight, actions, temperature, rows, reference)
    theirs = plain(hidden, weight, actions, temperature, reference)
    factors = torch.randn(3, M, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    gradients = []
    for pair in (ours, theirs):
        total = sum((f * values).sum() for f, values, want in zip(factors, pair, wanted, strict=True) if want)
        gradients.append(torch.autograd.grad(total, (hidden, weight)))
    torch.testing.assert_close(*gradients, rtol=1e-11, atol=1e-12)


def test_a_reference_changes_no_bit_of_the_rest_and_equal_policies_have_no_kl():
    hidden, weight, actions = problem(torch.float32)
    reference = (hidden.detach(), weight.detach())
    log_probs, entropy, kl = linear_log_probs(hidden, weight, actions, 0.7, 3, reference)
    for one, other in zip((log_probs, entropy), linear_log_probs(hidden, weight, actions, 0.7, 3), strict=True):
        assert torch.equal(one, other)
    assert kl.eq(0).all()


def test_k3_is_an_estimate_of_the_exact_kl():
    """Its expectation over all actions of a step, in exact arithmetic."""
    hidden, weight, _ = problem()
    step = hidden[:1].detach().expand(V, D)
    other = (step.flip(1), weight.detach())
    log_p, _, kl = linear_log_probs(step, weight.detach(), torch.arange(V), reference=other)
    log_q = linear_log_probs(*other, torch.arange(V))[0]
    assert (log_p.exp() * k3(log_q - log_p)).sum().item() == pytest.approx(kl[0].item(), rel=1e-12)


@pytest.mark.parametrize("frozen", [0, 1])
def test_a_frozen_side_gets_no_gradient(frozen):
    tensors = problem()
    tensors[frozen].requires_grad_(False)
    linear_log_probs(*tensors)[0].sum().backward()
    assert tensors[frozen].grad is None
    assert tensors[1 - frozen].grad is not None


def test_backward_twice_is_the_same():
    """A kept graph must not be spoiled by its first use."""
    hidden, weight, actions = problem()
    total = linear_log_probs(hidden, weight, actions)[0].sum()
    first = torch.autograd.grad(total, hidden, retain_graph=True)[0]
    assert torch.equal(first, torch.autograd.grad(total, hidden)[0])


def test_half_precision_is_reduced_in_float32():
    hidden, weight, actions = problem(torch.bfloat16)
    log_probs, entropy = linear_log_probs(hidden, weight, actions)
    assert log_probs.dtype == entropy.dtype == torch.float32
    logits = (hidden @ weight.T).float()
    torch.testing.assert_close(log_probs, logits.log_softmax(-1).gather(-1, actions[:, None])[:, 0])


def test_autocast_takes_the_product_in_its_dtype():
    hidden, weight, actions = problem(torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        log_probs, _ = linear_log_probs(hidden, weight, actions)
    expected, _ = linear_log_probs(hidden.bfloat16(), weight.bfloat16(), actions)
    assert torch.equal(log_probs, expected)
    log_probs.sum().backward()
    assert hidden.grad is not None
    assert hidden.grad.dtype == weight.grad.dtype == torch.float32


def test_impossible_tokens_and_no_tokens():
    hidden, weight, actions = problem()
    with torch.no_grad():
        weight[:, 0] = -1e4
        hidden[:, 0] = 1.0
        weight[3, 0] = 0
    actions[:] = 3
    log_probs, entropy = linear_log_probs(hidden, weight, actions)
    assert torch.equal(log_probs, torch.zeros(M, dtype=torch.float64))
    assert torch.equal(entropy, torch.zeros(M, dtype=torch.float64))
    assert linear_log_probs(hidden[:0], weight, actions[:0])[0].shape == (0,)


@pytest.mark.skipif(
    "out_dtype" not in inspect.signature(meta_mm).parameters,
    reason="fake tensors of torch 2.9 have no such product",
)
def test_products_on_cuda_are_float32():
    """Torch's own schema, on tensors without values."""
    with FakeTensorMode():
        hidden, weight = (torch.empty(n, D, dtype=torch.bfloat16, device="cuda") for n in (M, V))
        logits = _scaled_logits(hidden, weight, 0.5, torch.float32)
    assert (logits.dtype, logits.device.type, logits.shape) == (torch.float32, "cuda", (M, V))
