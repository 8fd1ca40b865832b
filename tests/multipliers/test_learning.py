"""Learning outcomes: a bandit whose optimum is known, and one with a constraint that can't be met."""

import math

import pytest

from lightning_cgrpo.multipliers import (
    PID,
    ExponentiatedGradient,
    NuPI,
    ProjectedAscent,
    ResilientSlack,
    SoftmaxAdam,
    WeightBounds,
)

from .bandit import Bandit, Outcome, play

# One safe arm, one that tempts to either violation, one to both. Optimum: 2/7, 2/7, 3/7 and 0.
FEASIBLE = Bandit(
    arms=((0.5, 0.05, 0.05), (0.8, 0.4, 0.05), (0.8, 0.05, 0.4), (0.9, 0.4, 0.4)),
    thresholds=(0.15, 0.2),
)

# The second rate can't fall below .30. The arm where it does has little reward and violates the first threshold, which
# the first arm meets easily; the third has the most reward and violates both.
INFEASIBLE = Bandit(
    arms=((0.95, 0.02, 0.4), (0.25, 0.25, 0.3), (1.0, 0.3, 0.5)),
    thresholds=(0.05, 0.05),
)

CONTROLLERS = [SoftmaxAdam, ExponentiatedGradient, ProjectedAscent, PID, NuPI]

# MEASURED


def test_optimum() -> None:
    assert FEASIBLE.optimum() == pytest.approx((2 * 0.5 + 2 * 0.8 + 3 * 0.8) / 7)


@pytest.mark.parametrize("controller", CONTROLLERS)
def test_every_controller_reaches_its_thresholds(controller) -> None:
    outcome = play(FEASIBLE, controller())
    # Sampling noise of a mean over 750 updates of 512 answers is below 0.001, but oscillation adds to it.
    assert outcome.rates == pytest.approx(FEASIBLE.thresholds, abs=0.005)
    # The entropy bonus costs 0.010 of it.
    assert FEASIBLE.optimum() - 0.02 < outcome.reward < FEASIBLE.optimum() + 0.005
    assert outcome.stalled is None


def test_oscillation_of_softmax_shrinks_with_its_learning_rate() -> None:
    assert play(FEASIBLE, SoftmaxAdam(lr=0.01)).std > 0.03
    assert play(FEASIBLE, SoftmaxAdam(lr=0.002)).std < 0.025


class TestInfeasibleConstraint:
    """The second constraint can't be met; what becomes of the reward and of the first one?"""

    def test_softmax_is_captured(self) -> None:
        outcome = play(INFEASIBLE, SoftmaxAdam())
        assert outcome.weights == pytest.approx((0, 0, 1), abs=0.02)
        assert outcome.rates[0] > 0.2
        assert outcome.reward < 0.4
        assert outcome.stalled == 1

    def test_exponentiated_gradient_without_guards_is_captured(self) -> None:
        outcome = play(INFEASIBLE, ExponentiatedGradient(clip=math.inf, bound=50.0))
        assert outcome.weights[2] > 0.9
        assert outcome.rates[0] > 0.2
        assert outcome.reward < 0.4
        assert outcome.stalled == 1

    def test_clipped_violations_and_floors_protect(self) -> None:
        check_protected(play(INFEASIBLE, ExponentiatedGradient(clip=0.05), bounds=WeightBounds(floor=0.1)))

    @pytest.mark.parametrize("controller", [ProjectedAscent, PID, NuPI])
    def test_caps_protect(self, controller) -> None:
        check_protected(play(INFEASIBLE, controller(max_multiplier=5.0)))

    @pytest.mark.parametrize("controller", [SoftmaxAdam, ExponentiatedGradient, ProjectedAscent])
    def test_slack_protects(self, controller) -> None:
        outcome = play(INFEASIBLE, controller(), slack=ResilientSlack(alpha=2.0))
        assert outcome.reward > 0.9
        # The first threshold gives way as well, by as much as reported.
        assert outcome.rates[0] == pytest.approx(0.05 + outcome.slack[0], abs=0.005)
        assert outcome.rates[1] == pytest.approx(0.05 + outcome.slack[1], abs=0.02)
        assert outcome.stalled is None


def check_protected(outcome: Outcome) -> None:
    assert outcome.reward > 0.85
    assert outcome.rates[0] == pytest.approx(0.05, abs=0.015)
    assert outcome.stalled is None
