"""Constraints as people state them: means and schedules."""

import math

import pytest
import torch

from lightning_cgrpo.core.rollout import PromptGroups, Signal
from lightning_cgrpo.multipliers.units import LARGEST, Units, observed_answers, within_groups
from lightning_cgrpo.objective.objective import Constraint, Objective, ObjectiveError
from lightning_cgrpo.objective.verdicts.clustered import ClusteredMean


class TestMeans:
    SIGNAL = Signal(torch.tensor([[10.0, 30.0], [20.0, 7.0]]), applicable=torch.tensor([[True, True], [True, False]]))

    @pytest.mark.parametrize(("word", "sign"), [("mean_at_most", 1), ("mean_at_least", -1)])
    def test_levels_are_means_in_the_signals_unit(self, word: str, sign: int) -> None:
        constraint = Constraint(**{word: 15.0})
        values, counts = constraint.violations(self.SIGNAL)
        assert (values.sum(), counts.sum()) == (sign * 60, 3)
        assert constraint.bound.target == sign * 15
        assert constraint.bound.shown(sign * 20.0) == 20 and constraint.bound.violation(20.0) == sign * 20
        assert constraint.bound.tag("x") == "mean/x" and Constraint(at_most=0.1).bound.tag("x") == "rate/x"
        assert constraint.component(self.SIGNAL).tolist() == (-sign * self.SIGNAL.value).tolist()
        assert (
            constraint.bound.met(15.0)
            and constraint.bound.met(14.0) == (sign > 0)
            and constraint.bound.met(16.0) == (sign < 0)
        )

    def test_the_spread_is_pooled_within_groups(self) -> None:
        """Groups (10, 30) and (20) have squares of 200 and degrees of freedom of 1."""
        objective = Objective("goal", {"c": Constraint(mean_at_most=5.0, signal="x"), "r": Constraint(at_most=0.1)})
        signals = {"x": self.SIGNAL, "r": Signal(torch.tensor([[1.0, 0], [0, 1]]))}
        assert within_groups(objective, signals, ["c", "r"]).tolist() == [[200, 0], [1, 0]]

    def test_drifts_have_none_and_an_unmeasured_signal_has_none(self) -> None:
        """A critic's warm-up leaves the policy alone, and measures no entropy."""
        objective = Objective("goal", {"kl": Constraint(mean_at_most=0.1), "entropy": Constraint(mean_at_least=1.0)})
        signals = {"goal": Signal(torch.ones(3, 7)), "kl": Signal(torch.arange(21.0).view(3, 7))}
        assert within_groups(objective, signals, ["kl", "entropy"]).tolist() == [[0, 0], [0, 0]]
        answers = observed_answers(objective, signals, ["kl", "entropy"])
        assert answers.tolist() == [21, 0] and answers.dtype == torch.float64

    def test_means_alone_are_clamped(self) -> None:
        """A rate of 1 is 31 units above a threshold of 0.001."""
        constraints = {"rare": Constraint(at_most=0.001), "steps": Constraint(mean_at_most=10.0)}
        units = Units(Objective("goal", constraints), standard=True)
        assert LARGEST == 10
        for sign in (1.0, -1.0):
            clamped = units.clamped(sign * torch.tensor([31.6, 31.6]))
            assert clamped.tolist() == (sign * torch.tensor([31.6, 10.0])).tolist()

    def test_equal_answers_have_no_spread_whatever_their_rounding(self) -> None:
        objective = Objective("goal", {"c": Constraint(mean_at_most=5.0)})
        assert within_groups(objective, {"c": Signal(torch.full((3, 7), 0.1))}, ["c"])[0].item() == 0

    def test_the_interval_is_students(self) -> None:
        bound = Constraint(mean_at_most=19.0).bound
        interval = bound.interval(ClusteredMean(18.0, 0.5, 11, 11))
        assert interval == pytest.approx((18 - 2.228 * 0.5, 18 + 2.228 * 0.5), abs=1e-3)
        assert bound.side(*interval) == "undecided" and bound.interval_text(*interval) == "16.89 to 19.11"
        assert ClusteredMean(18.0, None, 1, 1).bounds(0.05) == (-math.inf, math.inf)
        assert bound.interval_text(0.0, 0.0) == "all equal"


def test_numbers_are_no_indicators() -> None:
    signals = {"goal": Signal(torch.ones(1, 4)), "n": Signal(torch.tensor([[1.0, 2, 3, 4]]))}
    with pytest.raises(ObjectiveError, match="constraint 'n' to be 0 or 1, but got 2, try violated_above"):
        Objective("goal", {"n": Constraint(at_most=0.1)}).made(signals, PromptGroups(torch.arange(1)))


class TestSchedules:
    def test_a_line(self) -> None:
        constraint = Constraint(at_least=0.99, start=0.90, over=9)
        assert [constraint.threshold(u) for u in (0, 3, 9, 100)] == [0.90, pytest.approx(0.93), 0.99, 0.99]
