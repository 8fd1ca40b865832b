"""The default controller against its equation, at its bounds, and its units."""

import math

import pytest
import torch

from examples.controllers.exponentiated_gradient import ExponentiatedGradient
from lightning_cgrpo.multipliers import DampedAscent, damped_ascent, standard_units
from tests.multipliers.stepping import draws, maker, multiplier, step

controller = maker(DampedAscent)


@pytest.fixture
def unsmoothed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(damped_ascent, "SMOOTHING", 0.0)


def test_steps_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(damped_ascent, "SMOOTHING", 0.75)
    made = controller(gain=2.0, time=4.0, max_multiplier=9.0, init=1.0)
    assert made.weights.tolist() == [0.5, 0.5]
    made.total.fill_(9.0)
    smoothed, slower, integral = 0.4, 0.4, 0.2  # the averages start at the first violation
    assert multiplier(made, 0.4) == pytest.approx(math.exp(2 * 0.8 + integral))
    for violation in (-2.0, -0.3, 2.0, 0.2, -0.8):
        smoothed = 0.75 * smoothed + 0.25 * violation
        slower = 0.9 * slower + 0.1 * violation
        integral += 0.5 * smoothed
        # One average is 3 updates late, the other 9.
        foreseen = smoothed + 10 / 6 * (smoothed - slower)
        part = max(-1.0, min(1.0, 2 * foreseen))
        made.total.fill_(9.0)  # beyond reach
        assert multiplier(made, violation) == pytest.approx(math.exp(part + max(part, 0) + integral))
    made.total.fill_(9.0)
    smoothed = 0.75 * smoothed + 0.25 * 9.0  # far from the threshold
    assert multiplier(made, 9.0) == pytest.approx(9.0 * 0.5 / smoothed)


def test_a_steady_change_is_foreseen_ten_updates_ahead() -> None:
    made = controller()
    for update in range(100):
        step(made, 0.03 * update)
    late = 0.03 * 0.7 / 0.3  # the average of a steady change
    assert made.foreseen.item() == pytest.approx(0.03 * 99 - late + 0.3, abs=1e-3)


def test_a_constraint_violated_again_gets_half_of_its_integral_back(unsmoothed: None) -> None:
    made = controller()
    step(made, 0.12)
    assert made.integral.item() == pytest.approx(0.01)
    for _ in range(100):
        step(made, -0.3)
    assert made.integral.item() == pytest.approx(0.01 - 2.5)
    step(made, 0.12)
    # Half of the loss beyond 1 returns, before the violation moves it.
    returned = (2.5 - 1) / 2
    assert made.integral.item() == pytest.approx(0.01 - 2.5 + returned + 0.01)
    step(made, 0.12)
    assert made.integral.item() == pytest.approx(0.01 - 2.5 + returned + 0.02), "once"
    # A loss of less than 1, as noise makes it, is not returned.
    for _ in range(30):
        step(made, -0.3)
    lost = made.integral.item()
    step(made, 0.12)
    assert made.integral.item() == pytest.approx(lost + 0.01)


def test_integral_stops_at_the_cap_and_leaves_it_at_once() -> None:
    made = controller()
    for _ in range(150):
        assert multiplier(made, 0.5) <= 10 + 1e-12
    assert made.multipliers.item() == pytest.approx(10)
    far = controller()
    for _ in range(1500):
        step(far, 30.0)
    assert far.multipliers.item() == pytest.approx(10), "in time, from far away, too"
    falling = [multiplier(made, -0.1) for _ in range(15)]
    # The fall of the violation is foreseen to go on. Once it is steady, the integral alone falls.
    assert 1 > falling[2] > falling[-1]


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


@pytest.mark.parametrize(("least", "times", "updates"), [(0.01, 2, 190), (0.01, 3, 37), (0.1, 2, 3), (0.1, 3, 2)])
def test_waking_up_after_long_slack(least: float, times: int, updates: int) -> None:
    """At a rate of `times` the threshold of 0.01; docs/did_it_work.md has the numbers."""
    made, unit = controller(min_multiplier=least), 0.01 / standard_units(torch.tensor([0.01])).item()
    for _ in range(600):
        multiplier(made, -unit)
    waking = [multiplier(made, (times - 1) * unit) for _ in range(updates)]
    assert waking[-2] < 1 <= waking[-1]


def test_the_bound_of_the_sum_by_hand(unsmoothed: None) -> None:
    """One constraint beyond its threshold, one with slack: S doubles in `time` updates, and falls more slowly."""
    made = maker(DampedAscent, 2)()
    for update in range(61):
        step(made, 0.5, -0.1)
        # The first multiplier is at its cap, S or 10; together they have at most S times the reward's weight.
        bound = 5 * 2 ** (update / 60)
        largest, slack = min(bound, 10), math.exp(-0.5 - 0.5 / 60 * (update + 1))
        assert made.multipliers.tolist() == pytest.approx([largest, slack])
        reward, first, second = made.weights.tolist()
        assert (first + second) / reward == pytest.approx(min(bound * 2 ** (1 / 60), largest + slack))
        assert first / second == pytest.approx(largest / slack)
    assert made.total.item() == pytest.approx(5 * 2 ** (61 / 60))
    step(made, 0.0, -0.1)  # met
    assert made.total.item() == pytest.approx(5 * 2 ** (60.75 / 60))
    step(made, 0.01, -0.1)  # violated, and not held back
    assert made.total.item() == pytest.approx(5 * 2 ** (60.75 / 60))
    for _ in range(300):
        step(made, -1.0, -1.0)
    assert made.total.item() == 5
    for _ in range(600):
        step(made, 0.5, 0.5)
    assert made.multipliers.tolist() == pytest.approx([10, 10])  # the cap of each
    assert made.total.item() == 100
    assert made.weights[0].item() == pytest.approx(1 / 21)


@pytest.mark.parametrize(("violation", "share"), [(0.3, 1.0), (0.5, 1.0), (1.0, 0.5), (2.0, 0.25), (30.0, 0.2)])
def test_the_reward_keeps_more_the_farther_a_threshold_is(violation: float, share: float) -> None:
    """Whatever the number of constraints, they have a share of S together, and S rises at this share of its speed."""
    for constraints in (1, 3, 30):
        made = maker(DampedAscent, constraints)()
        step(made, *(constraints * [violation]))
        assert made.weights[0].item() == pytest.approx(1 / (1 + share * made.total.item()), rel=0.01)
        assert made.total.item() == pytest.approx(5 * 2 ** (share / 60))
        assert made.multipliers.tolist() == pytest.approx(constraints * [5 * share])


def test_a_near_constraint_keeps_its_weight_beside_a_far_one(unsmoothed: None) -> None:
    """By hand: with caps 5 and 1, which use up S alike, each has half of its cap."""
    made = maker(DampedAscent, 2)()
    step(made, 0.5, 30.0)
    bound = made.total.item()
    assert bound == pytest.approx(5 * 2 ** (1 / 60))  # the near one decides
    reward, near, far = made.weights.tolist()
    assert [near / reward, far / reward] == pytest.approx([bound / 2, bound / 10])


def test_a_held_constraint_begins_anew_with_half_of_its_cap() -> None:
    made = maker(DampedAscent, 2)()
    for _ in range(220):
        step(made, 0.4, 0.5)
    second = made.integral[1].item()
    assert made.hold(0)
    assert made.integral.tolist() == [0, second] and made.total.item() == 5
    assert made.caps.tolist() == [2.5, 5]
    resumed = maker(DampedAscent, 2)()
    resumed.load_state_dict(made.state_dict())
    for _ in range(220):
        step(made, 0.4, 0.5)
        step(resumed, 0.4, 0.5)
    assert resumed.multipliers.tolist() == made.multipliers.tolist() == pytest.approx([5, 10])
    made.release(0)
    assert made.caps.tolist() == [10, 10]


def test_reduces_to_exponentiated_gradient(monkeypatch: pytest.MonkeyPatch, unsmoothed: None) -> None:
    monkeypatch.setattr(damped_ascent, "TOTAL", 1e300)
    gain = 1e-9
    made = controller(gain=gain, time=gain / 0.7, min_multiplier=1e-9, max_multiplier=1e9)
    exponentiated = maker(ExponentiatedGradient)(lr=0.7, clip=math.inf, bound=100.0)
    for violation in draws(300).tolist():
        multiplier(made, violation)
        step(exponentiated, violation)
        assert made.weights.tolist() == pytest.approx(exponentiated.weights.tolist(), abs=1e-6)


def test_standard_units_by_hand() -> None:
    units = standard_units(torch.tensor([0.15, 0.01, 0.5, 0.0, 1.0], dtype=torch.float64)).tolist()
    assert units[:3] == pytest.approx([math.sqrt(0.1275), math.sqrt(0.0099), 0.5])
    assert all(0 < unit < 0.04 for unit in units[3:]), "thresholds without a deviation have a unit"
