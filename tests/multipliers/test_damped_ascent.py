"""The default controller against its equation, at its bounds, and its units."""

import math

import pytest
import torch

from examples.controllers.exponentiated_gradient import ExponentiatedGradient
from lightning_cgrpo.multipliers import DampedAscent, standard_units
from tests.multipliers.stepping import maker, multiplier, step

controller = maker(DampedAscent)


def test_steps_by_hand() -> None:
    made = controller(gain=2.0, time=4.0, smoothing=0.75, max_multiplier=9.0, init=1.0)
    assert made.weights.tolist() == [0.5, 0.5]
    smoothed, integral = 0.4, 0.2  # the average starts at the first violation
    assert multiplier(made, 0.4) == pytest.approx(math.exp(2 * 0.8 + integral))
    for violation in (-2.0, -2.0, 2.0, 2.0, -0.8):
        smoothed = 0.75 * smoothed + 0.25 * violation
        integral += 0.5 * smoothed
        part = max(-1.0, min(1.0, 2 * smoothed))
        assert multiplier(made, violation) == pytest.approx(math.exp(part + max(part, 0) + integral))
    assert multiplier(made, 9.0) == pytest.approx(9.0)


def test_integral_stops_at_the_cap_and_leaves_it_at_once() -> None:
    made = controller()
    for _ in range(150):
        assert multiplier(made, 0.5) <= 10 + 1e-12
    assert made.multipliers.item() == pytest.approx(10)
    falling = [multiplier(made, -0.1) for _ in range(15)]
    assert falling[9] < 7 and falling == sorted(falling, reverse=True)


def test_integral_stops_at_the_least_multiplier_and_leaves_it_before_the_threshold_is_crossed() -> None:
    made = controller()
    for _ in range(1000):
        multiplier(made, -0.3)
    assert made.multipliers.item() == pytest.approx(0.01)
    assert made.integral.item() > math.log(0.01) + 0.9  # it stopped where the proportional part did the rest
    rising = [multiplier(made, -0.3 + 0.01 * t) for t in range(31)]
    crossed = 30  # the first update without slack
    assert rising[crossed] > 0.015 and rising == sorted(rising)
    woken = [multiplier(made, 0.3) for _ in range(4)]
    assert woken[3] > 5 * rising[crossed]


@pytest.mark.parametrize(("least", "times", "updates"), [(0.01, 2, 375), (0.01, 3, 130), (0.1, 2, 100), (0.1, 3, 7)])
def test_waking_up_after_long_slack(least: float, times: int, updates: int) -> None:
    """At a rate of `times` the threshold of 0.01; docs/method.md has the numbers."""
    made, unit = controller(min_multiplier=least), 0.01 / standard_units(torch.tensor([0.01])).item()
    for _ in range(600):
        multiplier(made, -unit)
    waking = [multiplier(made, (times - 1) * unit) for _ in range(updates)]
    assert waking[-2] < 1 <= waking[-1]


def test_a_relaxed_constraint_has_half_of_its_cap_until_it_is_met() -> None:
    made, both = DampedAscent(), torch.ones(2, dtype=torch.bool)
    made.setup(2)
    for _ in range(220):
        made.step(torch.tensor([1.0, 2.0], dtype=torch.float64), both)
    assert made.relax(0) and made.caps.tolist() == [5, 10]
    made.step(torch.tensor([1.0, 2.0], dtype=torch.float64), both)
    assert made.multipliers.tolist() == pytest.approx([5, 10])
    met = maker(DampedAscent, 2)(smoothing=0.0)
    met.load_state_dict(made.state_dict() | {"integral": torch.tensor([9.0, 9.0], dtype=torch.float64).log()})
    met.step(torch.tensor([0.0, 2.0], dtype=torch.float64), both)  # exactly
    assert met.integral[0].exp().item() == pytest.approx(5) and met.caps.tolist() == [10, 10]
    resumed = DampedAscent()
    resumed.setup(2)
    resumed.load_state_dict(made.state_dict())
    assert resumed.caps.tolist() == made.caps.tolist()
    for _ in range(30):
        resumed.step(torch.tensor([-1.0, 0.5], dtype=torch.float64), both)
    assert resumed.caps.tolist() == [10, 10]


def test_reduces_to_exponentiated_gradient() -> None:
    gain = 1e-9
    made = controller(gain=gain, time=gain / 0.7, smoothing=0.0, min_multiplier=1e-9, max_multiplier=1e9)
    exponentiated = ExponentiatedGradient(0.7, clip=math.inf, bound=100.0)
    exponentiated.setup(1)
    violations = 0.05 + 0.3 * torch.randn(300, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for violation in violations:
        multiplier(made, violation.item())
        step(exponentiated, violation.item())
        assert made.weights.tolist() == pytest.approx(exponentiated.weights.tolist(), abs=1e-6)


class TestStandardUnits:
    def test_by_hand(self) -> None:
        thresholds = torch.tensor([0.15, 0.01, 0.5], dtype=torch.float64)
        assert standard_units(thresholds).tolist() == pytest.approx([math.sqrt(0.1275), math.sqrt(0.0099), 0.5])

    @pytest.mark.parametrize("threshold", [0.0, 1.0])
    def test_thresholds_without_a_deviation_have_a_unit(self, threshold: float) -> None:
        assert 0 < standard_units(torch.tensor([threshold])).item() < 0.04
