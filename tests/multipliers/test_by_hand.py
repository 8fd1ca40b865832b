"""The paper's softmax, projected ascent and exponentiated gradient by their equations, PID and nuPI as published.

PID: Stooke et al. (2020), algorithm 2, and its start-up and saturation. nuPI: Sohrabi et al. (2024).
"""

import math

import pytest
import torch

from examples.controllers.exponentiated_gradient import ExponentiatedGradient
from examples.controllers.nupi import NuPI
from lightning_cgrpo.multipliers import PID, ProjectedAscent, SoftmaxAdam
from lightning_cgrpo.multipliers.softmax import softmax_gradient
from tests.multipliers.stepping import draws, maker, multiplier, step

projected, exponentiated = maker(ProjectedAscent, 2), maker(ExponentiatedGradient, 2)
pid, nupi, softmax = maker(PID), maker(NuPI), maker(SoftmaxAdam, 2)


def test_projected_ascent_by_hand() -> None:
    made = projected(lr=0.5, max_multiplier=0.6)
    assert made.weights.tolist() == [1, 0, 0]
    step(made, 0.4, -0.2)
    assert made.multipliers.tolist() == pytest.approx([0.2, 0])
    step(made, 0.6, 0.2)
    assert made.multipliers.tolist() == pytest.approx([0.5, 0.1])
    step(made, 0.6, 0.8)
    assert made.multipliers.tolist() == pytest.approx([0.6, 0.5])
    assert made.weights.tolist() == pytest.approx([1 / 2.1, 0.6 / 2.1, 0.5 / 2.1])
    step(made, -0.4, -2.0)
    assert made.multipliers.tolist() == pytest.approx([0.4, 0])


def test_exponentiated_gradient_by_hand() -> None:
    assert exponentiated(init=math.log(2)).weights.tolist() == pytest.approx([0.2, 0.4, 0.4])
    made = exponentiated(lr=2.0, clip=0.1, bound=0.45)
    assert made.weights.tolist() == pytest.approx([1 / 3] * 3)
    step(made, 0.05, -0.3)
    assert made.logits.tolist() == pytest.approx([0.1, -0.2])
    step(made, 0.7, -0.3)
    assert made.logits.tolist() == pytest.approx([0.3, -0.4])
    step(made, 0.1, -0.1)
    assert made.logits.tolist() == pytest.approx([0.45, -0.45])
    total = 1 + math.exp(0.45) + math.exp(-0.45)
    assert made.weights.tolist() == pytest.approx([1 / total, math.exp(0.45) / total, math.exp(-0.45) / total])


def test_exponentiated_gradient_reduces_to_multiplicative_weights() -> None:
    made = exponentiated(lr=0.7, clip=math.inf, bound=math.inf)
    expected = torch.full((3,), 1 / 3, dtype=torch.float64)
    for violations in torch.randn(20, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64):
        step(made, *violations.tolist())
        expected = expected * torch.cat([torch.ones(1), (0.7 * violations).exp()])
        expected /= expected.sum()
        assert torch.allclose(made.weights, expected, rtol=1e-12)


def test_pid_equals_the_published_recursion_between_its_bounds() -> None:
    made = pid(kp=0.4, ki=0.1, kd=0.6)
    violations = draws(100).tolist()
    integral, previous = 0.0, violations[0]
    for v in violations:
        integral = max(0.0, integral + 0.1 * v)
        expected = max(0.0, 0.4 * v + integral + 0.6 * max(0.0, v - previous))
        previous = v
        assert multiplier(made, v) == pytest.approx(expected)
    assert expected < 5


def test_pid_derivative_after_a_gap_starts_at_the_last_observation() -> None:
    made = maker(PID, 2)(kp=0.0, ki=0.1, kd=1.0)
    both, one = torch.tensor([True, True]), torch.tensor([True, False])
    made.step(torch.tensor([0.1, 0.2]), one)
    made.step(torch.tensor([0.1, 0.2]), both)
    assert made.multipliers[1].item() == pytest.approx(0.02)  # its first: no derivative


def test_pid_integral_does_not_wind_up() -> None:
    made = pid(kp=1.0, ki=0.1, max_multiplier=2.0)
    for _ in range(1000):
        saturated = multiplier(made, 0.5)
    assert saturated == 2.0
    assert made.integral.item() == pytest.approx(1.5)  # kp v = .5 does the rest
    assert multiplier(made, 0.3) == pytest.approx(0.3 + 1.53)
    assert multiplier(made, -0.1) == pytest.approx(-0.1 + 1.52)


def test_pid_spike_does_not_empty_the_integral() -> None:
    made = pid(kp=10.0, ki=0.1, max_multiplier=2.0)
    for _ in range(20):
        multiplier(made, 0.1)
    before = made.integral.item()
    assert multiplier(made, 0.9) == 2.0
    assert made.integral.item() == before


def test_pid_reduces_to_projected_ascent() -> None:
    made = pid(kp=0.0, ki=0.7, kd=0.0, max_multiplier=1.0)
    projected = maker(ProjectedAscent)(lr=0.7, max_multiplier=1.0)
    seen = set()
    for v in draws(300).tolist():
        multiplier(made, v)
        step(projected, v)
        assert torch.equal(made.multipliers, projected.multipliers)
        assert torch.equal(made.weights, projected.weights)
        seen.add(made.multipliers.item())
    assert {0.0, 1.0} < seen  # both bounds were met


@pytest.mark.parametrize("nu", [0.0, 0.9, -0.5])
def test_nupi_equals_the_published_recursion(nu: float) -> None:
    made = nupi(kp=0.8, ki=0.1, nu=nu, max_multiplier=0.3, init=0.2)
    expected, smoothed, seen = 0.2, None, set()
    for v in (draws(300) - 0.05).tolist():
        new = v if smoothed is None else nu * smoothed + (1 - nu) * v
        change = 0.0 if smoothed is None else new - smoothed
        expected = min(max(expected + 0.1 * v + 0.8 * change, 0.0), 0.3)
        smoothed = new
        assert multiplier(made, v) == pytest.approx(expected, abs=1e-12)
        seen.add(round(expected, 9))
    assert {0.0, 0.3} < seen  # both bounds were met


def logits(made: SoftmaxAdam) -> list[float]:
    return [logit.item() for logit in made.logits]


def random(seed: int, size: int) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("seed", range(5))
def test_gradient_is_that_of_the_dual_function(seed: int) -> None:
    z, v = (3 * random(seed, 5)).requires_grad_(), random(seed + 100, 4)
    (torch.softmax(z, 0)[1:] * v).sum().backward()
    assert torch.allclose(softmax_gradient(z.detach(), v), z.grad, rtol=1e-12, atol=1e-15)


def test_many_steps_by_hand() -> None:
    lr, (b1, b2) = 0.05, (0.9, 0.999)
    made = softmax(lr=lr)
    assert logits(made) == [0.02] * 3
    z, m, s = [0.02] * 3, [0.0] * 3, [0.0] * 3
    for t, violations in enumerate(random(0, 60).view(30, 2).tolist(), 1):
        total = sum(math.exp(x) for x in z)
        weights = [math.exp(x) / total for x in z]
        mean = weights[1] * violations[0] + weights[2] * violations[1]
        g = [w * (v - mean) for w, v in zip(weights, [0.0, *violations], strict=True)]
        m = [b1 * a + (1 - b1) * x for a, x in zip(m, g, strict=True)]
        s = [b2 * a + (1 - b2) * x * x for a, x in zip(s, g, strict=True)]
        z = [x + lr * (a / (1 - b1**t)) / (math.sqrt(b / (1 - b2**t)) + 1e-8) for x, a, b in zip(z, m, s, strict=True)]
        step(made, *violations)
        assert logits(made) == pytest.approx(z, abs=1e-12)


def test_unobserved_constraint_enters_no_sum() -> None:
    made = softmax()
    made.step(torch.tensor([0.3, math.nan]), torch.tensor([True, False]))
    # v = .3/3 = .1: the reward goes down, the first constraint up.
    assert [math.copysign(1, x - 0.02) for x in logits(made)[:2]] == [-1, 1]
    assert logits(made)[2] == 0.02
    steps = {i: int(state["step"]) for i, state in made.get_extra_state().items()}
    assert steps == {0: 1, 1: 1}


def test_learning_rate_is_no_state() -> None:
    """A resumed run may change it."""
    source, changed = softmax(lr=0.01), softmax(lr=0.5)
    step(source, 0.3, 0.1)
    changed.load_state_dict(source.state_dict())
    before = logits(changed)
    step(changed, 0.3, 0.1)
    assert abs(logits(changed)[2] - before[2]) > 0.05
