"""The loss and its gradients against loops over the steps, under generated options."""

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lightning_cgrpo.grpo.losses import LossOptions, aggregation_weights, grpo_loss
from lightning_cgrpo.grpo.surrogates import CISPO, SAPO, Surrogate
from tests.generated import examples

AGGREGATIONS = ["token_mean", "sequence_mean", "sequence_sum", "constant"]
TENSORS = ("log_probs", "old_log_probs", "advantages", "reference_log_probs", "entropy", "exact_kl", "sampling_ratios")


@dataclass
class Case:
    """Options of a loss, and tensors ``[B, G, T]`` with garbage in the padding."""

    options: LossOptions
    aggregation: str
    max_length: int | None
    mask: Tensor
    tensors: dict[str, Tensor]
    penalties: dict[str, Tensor]
    steps: bool
    """Training units are single steps."""

    def laid_out(self, values: Tensor) -> Tensor:
        """Values of training units, ``[N]`` or ``[N, T]``."""
        return values[self.mask] if self.steps else values.flatten(0, 1)


@st.composite
def cases(draw: st.DrawFn, surrogate: Surrogate | None) -> Case:
    steps = draw(st.booleans())
    clip = {}
    if surrogate is None:
        clip = {"clip_low": 0.2, "clip_high": draw(st.sampled_from([None, 0.4]))}
        clip["clip_limit"] = draw(st.sampled_from([None, 1.6]))
    kl = draw(st.sampled_from([{}, {"correct_kl": True}, {"exact_kl": True}]))
    options = LossOptions(
        surrogate=surrogate,
        sequence_ratio=not steps and draw(st.booleans()),
        kl_weight=draw(st.sampled_from([0.0, 0.3])),
        entropy_weight=draw(st.sampled_from([0.0, 0.1])),
        **clip,
        **kl,
    )
    random = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    shape = draw(st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 5)))
    mask = torch.arange(shape[2]) < torch.randint(0, shape[2] + 1, shape[:2], generator=random)[..., None]
    garbage = draw(st.sampled_from([math.nan, math.inf, -math.inf, 1e30]))
    tensors = {}
    for name in TENSORS:
        values = 0.5 * torch.randn(shape, generator=random, dtype=torch.float64)
        tensors[name] = torch.where(mask, values.exp() if name == "sampling_ratios" else values, garbage)
    tensors["advantages"] = torch.where(mask, tensors["advantages"].round(decimals=1), garbage)
    required = {"reference_log_probs"} if options.kl_weight or draw(st.booleans()) else set()
    required |= {"exact_kl"} if required and (options.exact_kl or draw(st.booleans())) else set()
    required |= {name for name in ("entropy", "sampling_ratios") if draw(st.booleans())}
    given_tensors = {name: x for name, x in tensors.items() if name in required or name in TENSORS[:3]}
    penalties = {name: torch.tensor(0.2) for name in ("kl", "entropy") if draw(st.booleans())}
    aggregation = draw(st.sampled_from(AGGREGATIONS)), draw(st.sampled_from([None, 3, 16]))
    return Case(options, *aggregation, mask, given_tensors, penalties, steps)


def step_weight(case: Case, length: int) -> float:
    """The share of a step in an answer of that length."""
    answers, steps = case.mask.shape[0] * case.mask.shape[1], int(case.mask.sum())
    return {
        "token_mean": 1 / max(steps, 1),
        "sequence_mean": 1 / (max(length, 1) * answers),
        "sequence_sum": 1 / answers,
        "constant": 1 / (answers * (case.max_length or case.mask.shape[2])),
    }[case.aggregation]


def surrogate_of(options: LossOptions, log_ratio: Tensor, advantage: float) -> tuple[Tensor, bool]:
    """A step's value, and whether a bound of the ratio acts."""
    ratio = log_ratio.exp()
    if isinstance(options.surrogate, SAPO):
        t = options.surrogate.temperature if advantage > 0 else options.surrogate.negative_temperature
        return 4 / t / (1 + (-t * (ratio - 1)).exp()) * advantage, False
    if isinstance(options.surrogate, CISPO):
        weight = min(ratio.item(), options.surrogate.cap)
        return weight * advantage * log_ratio, ratio.item() > options.surrogate.cap
    high = options.clip_low if options.clip_high is None else options.clip_high
    if advantage >= 0:  # a good answer that has become likely enough
        return ratio.clamp(max=1 + high) * advantage, advantage > 0 and ratio.item() > 1 + high
    limited = ratio if options.clip_limit is None else ratio.clamp(max=options.clip_limit)
    acts = ratio.item() < 1 - options.clip_low or ratio.item() > limited.item()
    return limited.clamp(min=1 - options.clip_low) * advantage, acts


def loss_in_loops(case: Case, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The loss and its terms."""
    options, total = case.options, dict.fromkeys(("loss", "kl", "entropy", "clip_fraction"), torch.zeros(()).double())
    for b, g in torch.cartesian_prod(*map(torch.arange, case.mask.shape[:2])).tolist():
        steps = case.mask[b, g].nonzero().flatten().tolist()
        of = {name: [values[b, g, t] for t in steps] for name, values in tensors.items()}
        log_ratios = [new - old for new, old in zip(of["log_probs"], of["old_log_probs"], strict=True)]
        if options.sequence_ratio and steps:
            log_ratios = [sum(log_ratios) / len(steps)] * len(steps)
        for i, log_ratio in enumerate(log_ratios):
            weight = step_weight(case, len(steps))
            value, acts = surrogate_of(options, log_ratio, of["advantages"][i].item())
            if "sampling_ratios" in of:
                value = value * of["sampling_ratios"][i]
            if "reference_log_probs" in of:
                distance = of["reference_log_probs"][i] - of["log_probs"][i]
                estimate = distance.exp() - distance - 1
                if options.correct_kl:
                    estimate = estimate * log_ratio.exp()
                exact = of["exact_kl"][i] if "exact_kl" in of else estimate
                kl = exact if options.exact_kl else estimate
                value = value - options.kl_weight * kl - case.penalties.get("kl", 0) * exact
                total["kl"] = total["kl"] + weight * kl.detach()
            if "entropy" in of:
                value = value + (options.entropy_weight - case.penalties.get("entropy", 0)) * of["entropy"][i]
                total["entropy"] = total["entropy"] + weight * of["entropy"][i].detach()
            total["loss"] = total["loss"] - weight * value
            total["clip_fraction"] = total["clip_fraction"] + weight * acts
    return total


@pytest.mark.parametrize("surrogate", [None, CISPO(1.1), SAPO(0.8, 1.3)], ids=["clipped", "cispo", "sapo"])
@examples
@given(st.data())
def test_loss_and_gradients(surrogate: Surrogate | None, data: st.DataObject) -> None:
    case = data.draw(cases(surrogate))
    trained = [name for name in ("log_probs", "entropy", "exact_kl") if name in case.tensors]
    ours, theirs = ({name: x.clone() for name, x in case.tensors.items()} for _ in range(2))
    for name in trained:
        ours[name].requires_grad_(), theirs[name].requires_grad_()
    expected = loss_in_loops(case, theirs)
    weights = aggregation_weights(case.mask, case.aggregation, case.max_length).double()
    assert weights[~case.mask].eq(0).all()
    units = {name: case.laid_out(values) for name, values in ours.items()}
    first = [units.pop(name) for name in TENSORS[:3]]
    terms = grpo_loss(*first, case.laid_out(weights), case.options, penalties=case.penalties, **units)
    for name, value in expected.items():
        assert float(getattr(terms, name)) == pytest.approx(float(value), rel=1e-6, abs=1e-9), name
    if not case.mask.any():
        return
    terms.loss.backward()
    expected["loss"].backward()
    for name in trained:
        gradients = [torch.zeros_like(x[name]) if x[name].grad is None else x[name].grad for x in (ours, theirs)]
        torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-9)
        assert gradients[0][~case.mask].eq(0).all()


@pytest.mark.parametrize("moved", [False, True])
def test_which_divergence_the_kl_descends(moved: bool) -> None:
    """By the sum over all actions. Corrected: KL(policy || reference), wherever the samples come from. Otherwise,
    before the first step: KL(reference || policy).
    """
    draw = torch.Generator().manual_seed(0)
    logits, other, noise = torch.randn(3, 7, generator=draw, dtype=torch.float64)
    logits.requires_grad_()
    reference, old = other.log_softmax(-1), (logits.detach() + moved * noise).log_softmax(-1)

    def gradient(correct: bool) -> Tensor:
        logits.grad = None
        options = LossOptions(kl_weight=1.0, correct_kl=correct)
        tensors = logits.log_softmax(-1), old, torch.zeros(7), old.exp()
        terms = grpo_loss(*tensors, options, reference_log_probs=reference)
        terms.loss.backward()
        policy = logits.detach().log_softmax(-1)
        if correct:
            assert terms.kl.item() == pytest.approx((policy.exp() * (policy - reference)).sum().item())
        return logits.grad

    again = logits.detach().clone().requires_grad_()
    policy = again.log_softmax(-1)
    (backward,) = torch.autograd.grad((policy.exp() * (policy - reference)).sum(), again, retain_graph=True)
    (forward,) = torch.autograd.grad((reference.exp() * (reference - policy)).sum(), again)
    torch.testing.assert_close(gradient(True), backward)
    assert torch.allclose(gradient(False), forward) != moved
    assert not torch.allclose(gradient(False), backward, rtol=0.1)


@pytest.mark.parametrize("nats", [0.5, 5.0, 20.0, 30.0, 60.0])
def test_the_corrected_kl_has_the_gradient_of_the_kl_also_far_from_the_reference(nats):
    """-r d with r = 1: two terms of exp(d) would cancel to noise in float32."""
    reference = torch.tensor([-1.0])
    log_probs = (reference - nats).requires_grad_()
    options = LossOptions(kl_weight=1.0, correct_kl=True)
    tensors = log_probs, log_probs.detach(), torch.zeros(1), torch.ones(1)
    terms = grpo_loss(*tensors, options, reference_log_probs=reference)
    terms.loss.backward()
    assert log_probs.grad.item() == pytest.approx(-nats, rel=1e-5)
    assert terms.kl.item() == pytest.approx(math.expm1(nats) - nats, rel=1e-5)
