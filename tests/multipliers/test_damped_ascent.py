"""The default controller against its equation, at its bounds, and its units."""

import math

import pytest
import torch

from lightning_cgrpo.multipliers import DampedAscent, ProjectedAscent, standard_units

ONE = torch.ones(1, dtype=torch.bool)


def controller(**arguments) -> DampedAscent:
    made = DampedAscent(**arguments)
    made.setup(1)
    return made


def step(made: DampedAscent, violation: float) -> float:
    made.step(torch.tensor([violation], dtype=torch.float64), ONE)
    return made.multipliers.item()


def test_steps_by_hand() -> None:
    made = controller(gain=2.0, time=4.0, smoothing=0.75, max_multiplier=3.0, init=1.0)
    assert made.weights.tolist() == [0.5, 0.5]
    assert step(made, 0.4) == pytest.approx(2 * 0.4 + 1.2)  # the average starts at the first violation
    smoothed = 0.75 * 0.4 + 0.25 * 0.8
    assert step(made, 0.8) == pytest.approx(2 * smoothed + 1.6)
    smoothed = 0.75 * smoothed - 0.25 * 0.4
    assert step(made, -0.4) == pytest.approx(2 * smoothed + 1.4)


def test_the_same_setting_answers_twice_the_violation_with_twice_the_move() -> None:
    small, large = controller(init=5.0), controller(init=5.0)
    for violation in (0.02, -0.01, 0.03):
        low, high = step(small, violation), step(large, 2 * violation)
        assert high - 5 == pytest.approx(2 * (low - 5))


def test_integral_stops_at_the_cap_and_leaves_it_at_once() -> None:
    made = controller()
    for _ in range(1000):
        assert step(made, 0.5) <= 10
    assert made.multipliers.item() == 10
    falling = [step(made, -0.1) for _ in range(15)]
    assert falling[9] < 7 and falling == sorted(falling, reverse=True)


def test_the_integral_falls_to_zero_without_need() -> None:
    made = controller()
    for _ in range(1000):
        step(made, -0.3)
    assert made.multipliers.item() == made.integral.item() == 0


@pytest.mark.parametrize(("noise", "bias"), [(0.1, 0.005), (0.2, 0.03)])
def test_noise_that_clips_at_zero_leaves_the_mean_rate_at_its_threshold(noise, bias) -> None:
    """An integral that stopped where the multiplier is 0 would end 0.04 and 0.14 below."""
    made, draw = controller(), torch.Generator().manual_seed(0)
    violation, seen = 0.0, []
    for _ in range(4000):
        seen.append(violation + noise * torch.randn((), generator=draw).item())
        multiplier = step(made, seen[-1])
        violation += 0.02 * (0.5 - min(multiplier, 3.0))  # the policy holds the rate where the multiplier is 0.5
    assert abs(sum(seen[1000:]) / 3000) < bias


def test_reduces_to_projected_ascent() -> None:
    gain = 1e-9
    made = controller(gain=gain, time=gain / 0.7, max_multiplier=1.0, init=0.0)
    projected = ProjectedAscent(0.7, max_multiplier=1.0)
    projected.setup(1)
    violations = 0.05 + 0.3 * torch.randn(300, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    seen = set()
    for violation in violations:
        step(made, violation.item())
        projected.step(violation[None], ONE)
        assert made.multipliers.item() == pytest.approx(projected.multipliers.item(), abs=1e-6)
        seen.add(round(made.multipliers.item(), 6))
    assert {0.0, 1.0} < seen


class TestStandardUnits:
    def test_by_hand(self) -> None:
        thresholds = torch.tensor([0.15, 0.01, 0.5], dtype=torch.float64)
        assert standard_units(thresholds).tolist() == pytest.approx([math.sqrt(0.1275), math.sqrt(0.0099), 0.5])

    def test_are_the_deviation_of_a_measured_rate(self) -> None:
        """Whatever the threshold, a rate on n answers has the deviation 1 / sqrt(n)."""
        generator = torch.Generator().manual_seed(0)
        for threshold in (0.01, 0.15, 0.5):
            d = torch.tensor(threshold, dtype=torch.float64)
            answers = torch.rand(4000, 128, generator=generator) < threshold
            violations = (answers.double().mean(-1) - d) / standard_units(d)
            assert violations.std().item() == pytest.approx(1 / math.sqrt(128), rel=0.05)

    @pytest.mark.parametrize("threshold", [0.0, 1.0])
    def test_thresholds_without_a_deviation_have_a_unit(self, threshold: float) -> None:
        assert 0 < standard_units(torch.tensor([threshold])).item() < 0.04
