"""PID against the recursion of Stooke et al. (2020), algorithm 2, and its start-up and saturation."""

import pytest
import torch

from lightning_cgrpo.multipliers import PID, ProjectedAscent
from tests.multipliers.stepping import draws, maker, multiplier, step

controller = maker(PID)


def test_equals_the_published_recursion_between_its_bounds() -> None:
    made = controller(kp=0.4, ki=0.1, kd=0.6)
    violations = draws(100).tolist()
    integral, previous = 0.0, violations[0]
    for v in violations:
        integral = max(0.0, integral + 0.1 * v)
        expected = max(0.0, 0.4 * v + integral + 0.6 * max(0.0, v - previous))
        previous = v
        assert multiplier(made, v) == pytest.approx(expected)
    assert expected < 5


def test_derivative_after_a_gap_starts_at_the_last_observation() -> None:
    made = PID(kp=0.0, ki=0.1, kd=1.0)
    made.setup(2)
    both, one = torch.tensor([True, True]), torch.tensor([True, False])
    made.step(torch.tensor([0.1, 0.2]), one)
    made.step(torch.tensor([0.1, 0.2]), both)
    assert made.multipliers[1].item() == pytest.approx(0.02)  # its first: no derivative


def test_integral_does_not_wind_up() -> None:
    made = controller(kp=1.0, ki=0.1, max_multiplier=2.0)
    for _ in range(1000):
        saturated = multiplier(made, 0.5)
    assert saturated == 2.0
    assert made.integral.item() == pytest.approx(1.5)  # kp v = .5 does the rest
    assert multiplier(made, 0.3) == pytest.approx(0.3 + 1.53)
    assert multiplier(made, -0.1) == pytest.approx(-0.1 + 1.52)


def test_spike_does_not_empty_the_integral() -> None:
    made = controller(kp=10.0, ki=0.1, max_multiplier=2.0)
    for _ in range(20):
        multiplier(made, 0.1)
    before = made.integral.item()
    assert multiplier(made, 0.9) == 2.0
    assert made.integral.item() == before


def test_reduces_to_projected_ascent() -> None:
    made, projected = controller(kp=0.0, ki=0.7, kd=0.0, max_multiplier=1.0), ProjectedAscent(0.7, max_multiplier=1.0)
    projected.setup(1)
    seen = set()
    for v in draws(300):
        multiplier(made, v.item())
        step(projected, v.item())
        assert torch.equal(made.multipliers, projected.multipliers)
        assert torch.equal(made.weights, projected.weights)
        seen.add(made.multipliers.item())
    assert {0.0, 1.0} < seen  # both bounds were met
