"""The 38 bandits: their optimum, their measures, and a policy that learns beside its dual."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.bandits import Problem
from benchmarks.duals import CONTROLLERS, all_problems, judged, train
from lightning_cgrpo.multipliers import DampedAscent

TWO_ARMS = Problem(np.array([[0.2, 1.0]]), np.array([[[0.1, 0.5]]]), (0.3,), updates=400)


def test_the_optimum_of_two_arms_by_hand():
    """Half of the answers may come from the dear arm; the safest policy never takes it."""
    safest, best, prices = TWO_ARMS.bounds()
    assert (safest, best, *prices) == pytest.approx((0.2, 0.6, 2.0))
    assert TWO_ARMS.excesses(np.array([[[0.5, 0.5]], [[0.0, 1.0]]])) == pytest.approx(np.array([[0], [0.2 / 0.3]]))


def test_the_best_at_the_rates_of_a_policy():
    """A quarter of dear answers has the rate .2; beside two equal contexts, a policy may move them to one."""
    assert TWO_ARMS.best_at_rates_of(np.array([[0.75, 0.25]])) == pytest.approx(0.75 * 0.2 + 0.25)
    dearer = Problem(np.array([[0.2, 1.0], [0.2, 0.4]]), np.array([[[0.1, 0.5], [0.1, 0.5]]]), (0.3,))
    assert dearer.best_at_rates_of(np.array([[0.5, 0.5], [0.5, 0.5]])) == pytest.approx((1 + 0.2) / 2)
    assert dearer.best_at_rates_of(np.array([[0.0, 1.0], [1.0, 0.0]])) == pytest.approx((1 + 0.2) / 2)


def test_rates_over_steps_pool_the_steps():
    """The dear arm's answers are three times as long, so a quarter of them gives half of the steps."""
    long = replace(TWO_ARMS, lengths=np.array([[1.0, 3.0]]))
    assert long.excesses(np.array([[[0.75, 0.25]]])) == pytest.approx(np.array([[0]]))
    assert long.bounds()[1] == pytest.approx(0.75 * 0.2 + 0.25)
    strict = replace(long, thresholds=(0.2,))
    assert strict.best_at_rates_of(np.array([[0.75, 0.25]])) == pytest.approx(0.75 * 0.2 + 0.25)


def test_all_problems_have_a_gain_within_their_thresholds():
    problems = all_problems()
    assert len(problems) == 26 + 12
    for problem in problems.values():
        safest, best, prices = problem.bounds()
        assert best > 1.005 * safest > 0 and prices.max() > 0


def test_a_policy_learns_to_meet_its_threshold():
    policies = train(TWO_ARMS, DampedAscent(), seed=0)
    assert policies.shape == (100, 1, 2)
    assert abs(TWO_ARMS.excesses(policies).mean()) < 0.1


def test_a_seed_gives_the_same_policies():
    short = replace(TWO_ARMS, updates=20)
    assert np.array_equal(*(train(short, DampedAscent(), seed=0) for _ in range(2)))


@pytest.mark.slow
def test_of_two_thresholds_that_exclude_each_other_the_feasible_one_is_held():
    """In seed 2 the infeasible one makes progress shortly before the other would stall."""
    assert judged("conflict", "DampedAscent", 2)["excess"] < 0.1


@pytest.mark.slow
@pytest.mark.parametrize("controller", CONTROLLERS)
def test_every_controller_plays_every_kind_of_problem(controller):
    for name in ("conflict", "heavy-tailed mean", "step rate, excess", "2 % of answers", "costs swap"):
        assert all(np.isfinite(value) for value in judged(name, controller, 0).values())
