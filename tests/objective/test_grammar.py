"""Constraints as people state them: means, compositions and schedules, and what is refused, in one line."""

import math
from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_cgrpo.objective.composition import composed
from lightning_cgrpo.objective.declaration import check_schedule
from lightning_cgrpo.objective.measurement import isolate_faults
from lightning_cgrpo.objective.objective import Constraint, Objective, ObjectiveError
from lightning_cgrpo.objective.standing import standing
from lightning_cgrpo.objective.targets import HOLD, Targets
from lightning_cgrpo.objective.units import within_groups
from lightning_cgrpo.rollout import PromptGroups, Signal
from lightning_cgrpo.verdicts.clustered import ClusteredMean

DECLARED = {"goal": "indicator", "lava": "indicator", "tokens": "number", "score": "any"}


def refused(declared: dict, signals: dict | None = None) -> str:
    with pytest.raises(ObjectiveError) as caught:
        config = {"reward": "goal", "constraints": {"c": declared} if declared else {}, "signals": signals}
        Objective.declared(config).check_signals(DECLARED)
    assert "\n" not in str(caught.value)
    return str(caught.value)


class TestMeans:
    SIGNAL = Signal(torch.tensor([[10.0, 30.0], [20.0, 7.0]]), applicable=torch.tensor([[True, True], [True, False]]))

    @pytest.mark.parametrize(("word", "sign"), [("mean_at_most", 1), ("mean_at_least", -1)])
    def test_levels_are_means_in_the_signals_unit(self, word: str, sign: int) -> None:
        constraint = Constraint(**{word: 15.0})
        values, counts = constraint.violations(self.SIGNAL)
        assert (values.sum(), counts.sum()) == (sign * 60, 3)
        assert constraint.bound.target == sign * 15
        assert constraint.bound.shown(sign * 20.0) == 20 and constraint.bound.violation(20.0) == sign * 20
        assert constraint.tag("x") == "mean/x" and Constraint(at_most=0.1).tag("x") == "rate/x"
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

    def test_equal_answers_have_no_spread_whatever_their_rounding(self) -> None:
        objective = Objective("goal", {"c": Constraint(mean_at_most=5.0)})
        assert within_groups(objective, {"c": Signal(torch.full((3, 7), 0.1))}, ["c"])[0].item() == 0

    def test_the_interval_is_students(self) -> None:
        found = standing(Constraint(mean_at_most=19.0).bound, ClusteredMean(18.0, 0.5, 11, 11))
        assert (found.low, found.high) == pytest.approx((18 - 2.228 * 0.5, 18 + 2.228 * 0.5), abs=1e-3)
        assert found.says == "undecided" and str(found) == "16.89 to 19.11"
        assert ClusteredMean(18.0, None, 1, 1).bounds(0.05) == (-math.inf, math.inf)

    @pytest.mark.parametrize(
        ("declared", "words"),
        [
            (
                {"mean_at_most": 5, "at_most": 0.1, "signal": "tokens"},
                "one bound, but got both at_most: 0.1 and mean_at",
            ),
            ({"mean_at_most": 0.5, "signal": "lava"}, "'lava' is an indicator, whose mean is a rate, try at_most:."),
            (
                {"mean_at_most": "few", "signal": "tokens"},
                "mean_at_most of constraint 'c' to be a number, but got 'few'",
            ),
            ({"mean_at_most": math.nan, "signal": "tokens"}, "a finite mean_at_most, but got nan"),
            (
                {"mean_at_least": 5, "violated_above": 3, "signal": "tokens"},
                "a mean or a rate, but got mean_at_least and",
            ),
            ({"mean_at_most": 5, "signal": "token"}, "but got 'token'. Did you mean 'tokens'?"),
            ({"mean_at_most": 5, "range": [9, 7], "signal": "tokens"}, "the signal's least and greatest value"),
            ({"mean_at_most": 5, "range": [7, 9], "signal": "tokens"}, "within its range: [7, 9], but got 5"),
            ({"mean_at_most": 5, "range": 9, "signal": "tokens"}, "range of constraint 'c' to be two numbers"),
            ({"at_most": 0.5, "range": [0, 1], "signal": "score"}, "range: only with mean_at_most:"),
        ],
    )
    def test_refusals(self, declared: dict, words: str) -> None:
        assert words in refused(declared)

    def test_bounds_that_exclude_each_other(self) -> None:
        low, high = Constraint(mean_at_least=9.0, signal="x"), Constraint(mean_at_most=5.0, signal="x")
        with pytest.raises(ObjectiveError, match="allow some mean, but got mean_at_least: 9 and mean_at_most: 5"):
            Objective("goal", {"low": low, "high": high})


class TestComposition:
    SIGNALS: ClassVar = {
        "a": Signal(torch.tensor([[1.0, 1, 0, 0]])),
        "b": Signal(torch.tensor([[1.0, 0, 1, 0]]), applicable=torch.tensor([[True, True, True, False]])),
        "n": Signal(torch.tensor([[1.0, 2, 3, 4]])),
    }

    @pytest.mark.parametrize(
        ("expression", "expected"),
        [
            ({"all_of": ["a", "b"]}, [1, 0, 0, 0]),
            ({"any_of": ["a", "b"]}, [1, 1, 1, 0]),
            ({"not": "a"}, [0, 0, 1, 1]),
            ({"above": {"n": 2}}, [0, 0, 1, 1]),
            ({"below": {"n": 2}}, [1, 0, 0, 0]),
            ({"all_of": [{"not": "a"}, {"above": {"n": 3}}]}, [0, 0, 0, 1]),
        ],
    )
    def test_operations(self, expression: dict, expected: list[int]) -> None:
        signal = composed(expression, self.SIGNALS)
        assert signal.value.tolist() == [expected]
        if "b" in str(expression).replace("below", "").replace("above", ""):
            assert signal.applicable.tolist() == [[True, True, True, False]]

    def test_compositions_of_compositions_in_any_order(self) -> None:
        objective = Objective("goal", signals={"c": {"not": "d"}, "d": {"any_of": ["a", {"below": {"n": 4}}]}})
        found = objective.with_compositions(self.SIGNALS)
        assert found["d"].value.tolist() == [[1, 1, 1, 0]] and found["c"].value.tolist() == [[0, 0, 0, 1]]

    def test_an_answer_with_a_fault_has_no_composition(self) -> None:
        """A length that is not a number is neither above nor below, and neither is anything made of it."""
        signals = {"a": self.SIGNALS["a"], "n": Signal(torch.tensor([[1.0, math.nan, 3, 4]]))}
        objective = Objective("goal", signals={"short": {"below": {"n": 2}}, "c": {"any_of": ["a", {"not": "short"}]}})
        clean, faults = isolate_faults(objective.with_compositions(signals))
        assert faults["c"].tolist() == faults["short"].tolist() == [1]
        assert clean["c"].applicable.tolist() == [[True, False, True, True]]

    def test_numbers_are_no_indicators(self) -> None:
        with pytest.raises(ObjectiveError, match=r"Expected indicators, 0 or 1, in .* but got 2, try above: or below:"):
            composed({"all_of": ["a", "n"]}, self.SIGNALS)

    @pytest.mark.parametrize(
        ("signals", "words"),
        [
            ({"s": {"all": ["goal", "lava"]}}, "made by an operation, but got 'all'. Did you mean 'all_of'?"),
            ({"s": {"all_of": ["goal"]}}, "a list of at least two signals"),
            ({"s": {"below": {"tokens": "few"}}}, "one signal and its limit, like {tokens: 80}"),
            ({"s": {"below": 80}}, "one signal and its limit"),
            ({"s": {}}, "to be one operation"),
            ({"s": "goal"}, "to be one operation"),
            ("goal", "signals to be a mapping by name"),
            ({"s": {"not": "gaol"}}, "but got 'gaol'. Did you mean 'goal'?"),
            ({"s": {"not": "tokens"}}, "'tokens' is a number, try {above: {tokens: LIMIT}}"),
            ({"s": {"above": {"lava": 0}}}, "'lava' is an indicator"),
            ({"goal": {"not": "lava"}}, "another name than the task's signals"),
            ({"s": {"not": "t"}, "t": {"not": "s"}}, "not to be made of themselves, but got s -> t -> s"),
        ],
    )
    def test_refusals(self, signals: dict, words: str) -> None:
        assert words in refused({}, signals)


class TestSchedules:
    def test_a_line(self) -> None:
        constraint = Constraint(at_least=0.99, start=0.90, over=9)
        assert [constraint.threshold(u) for u in (0, 3, 9, 100)] == pytest.approx([0.90, 0.93, 0.99, 0.99])
        assert constraint.threshold(9) == 0.99

    def test_a_list(self) -> None:
        constraint = Constraint(mean_at_most=20.0, start=[40.0, 30.0], over=10)
        assert [constraint.threshold(u) for u in (0, 4, 5, 9, 10, 11)] == [40, 40, 30, 30, 20, 20]

    def test_notches_follow_what_is_held(self) -> None:
        constraint = Constraint(at_most=0.05, start=0.20, notch=0.1)
        targets = Targets([constraint, Constraint(at_most=0.5)])
        assert targets.thresholds(0) == [0.20, 0.5]

        def observe(violations: float, opportunities: float = 10.0) -> list[float]:
            for _ in range(HOLD):
                targets.observe(torch.tensor([[violations, 9.0], [opportunities, 10.0]]))
                targets.advance(0, margin=0.0)
            return targets.thresholds(0)

        assert observe(0, 0) == [0.20, 0.5], "what was never observed was not held"
        assert observe(3) == [0.20, 0.5], "0.3 is above 0.2"
        assert observe(2) == pytest.approx([0.10, 0.5])
        assert observe(2) == pytest.approx([0.10, 0.5])
        assert observe(0) == [0.05, 0.5], "the last notch ends at the bound"
        assert observe(0) == [0.05, 0.5]
        assert targets.in_force.tolist() == [0.05, 0.5]

    def test_of_a_wanted_behavior_in_decimal(self) -> None:
        constraint = Constraint(at_least=0.9, start=0.8, notch=0.01)
        assert [constraint.threshold(0, n) for n in range(3)] == [0.80, 0.81, 0.82] and constraint.threshold(
            0, 99
        ) == 0.9
        assert replace(Constraint(at_least=0.9).bound, threshold=0.81).met(0.81)

    def test_half_a_hold_goes_on_from_a_checkpoint(self) -> None:
        one, other = (Targets([Constraint(at_most=0.05, start=0.20, notch=0.1)]) for _ in range(2))
        counts = torch.tensor([[1.0], [10.0]])
        for _ in range(HOLD - 1):
            one.observe(counts)
        other.load_state_dict(one.state_dict())
        other.observe(counts)
        assert other.thresholds(0) == pytest.approx([0.10]) and one.thresholds(0) == [0.20]

    @pytest.mark.parametrize(
        ("declared", "words"),
        [
            (
                {"at_most": 0.1, "start": 0.3},
                "start: with over: (updates) or with notch: (a step), but got start: alone",
            ),
            ({"at_most": 0.1, "over": 30}, "but got over: alone"),
            ({"at_most": 0.1, "start": 0.3, "over": 30, "notch": 0.1}, "one of over: and notch:, but got both"),
            ({"at_most": 0.1, "start": 0.05, "over": 30}, "tighten, but got 0.05 before 0.1, try a larger start:"),
            (
                {"at_least": 0.9, "start": [0.8, 0.7], "over": 30},
                "tighten, but got 0.8 before 0.7, try a smaller start:",
            ),
            ({"at_most": 0.1, "start": [0.3], "notch": 0.1}, "start: as one threshold for notch:"),
            ({"at_most": 0.1, "start": [], "over": 9}, "start: as one threshold"),
            ({"at_most": 0.1, "start": 3, "over": 9}, "start: like its bound, at_most, but got 3"),
            ({"at_most": 0.1, "start": 0.3, "notch": 0}, "a positive notch:, but got 0"),
            ({"at_most": 0.1, "start": [0.3, 0.2], "over": 1}, "over: of at least 2 updates, but got 1"),
            ({"at_most": 0.1, "start": "loose", "over": 9}, "start of constraint 'c' to be a number or a list"),
            ({"at_most": 0.1, "start": 0.3, "over": 9, "role": "monitor"}, "no schedule, since it is only monitored"),
        ],
    )
    def test_refusals(self, declared: dict, words: str) -> None:
        assert words in refused({**declared, "signal": "lava"})

    def test_past_the_runs_end(self) -> None:
        constraint = Constraint(at_most=0.1, start=0.3, over=300)
        check_schedule("c", constraint, 300)
        with pytest.raises(ObjectiveError, match=r"within the run's 200 updates, but got over: 300, try over: 133\."):
            check_schedule("c", constraint, 200)


NUMBERS = st.one_of(st.none(), st.booleans(), st.integers(-2, 120), st.floats(), st.text(max_size=3))
VALUES = st.one_of(
    NUMBERS,
    st.lists(NUMBERS, max_size=3),
    st.dictionaries(
        st.sampled_from(["tokens", "x"]), st.one_of(NUMBERS, st.lists(st.integers(1, 3), max_size=3)), max_size=2
    ),
)
DECLARATIONS = st.dictionaries(
    st.sampled_from(
        [
            "at_most",
            "at_least",
            "mean_at_most",
            "mean_at_least",
            "start",
            "over",
            "notch",
            "range",
            "where",
            "by",
            "violated_above",
        ]
    ),
    VALUES,
    max_size=4,
)
NAMES = st.sampled_from(["goal", "lava", "tokens", "score", "s", "t", "typo"])
EXPRESSIONS = st.recursive(
    st.one_of(NAMES, VALUES),
    lambda parts: st.dictionaries(
        st.sampled_from(["all_of", "any_of", "not", "above", "below", "all"]),
        st.one_of(parts, st.lists(parts, max_size=3), st.dictionaries(NAMES, NUMBERS, max_size=2)),
        max_size=2,
    ),
    max_leaves=6,
)


@settings(max_examples=600, deadline=None, derandomize=True)
@given(DECLARATIONS, NAMES, st.dictionaries(st.sampled_from(["s", "t"]), EXPRESSIONS, max_size=2))
def test_whatever_is_declared_is_an_objective_or_one_line(declared: dict, signal: str, signals: dict) -> None:
    """And what is an objective can be measured: thresholds in force, sums, spread and components are numbers."""
    config = {"reward": "goal", "constraints": {"c": {**declared, "signal": signal}}, "signals": signals}
    try:
        objective = Objective.declared(config)
        objective.check_signals(DECLARED)
    except ObjectiveError as error:
        assert "\n" not in str(error)
        return
    for constraint in objective.constraints.values():
        assert math.isfinite(constraint.threshold(3)) and math.isfinite(constraint.bound.target)
    values = {name: Signal(torch.tensor([[1.0, 0.0], [0.0, 1.0]])) for name in DECLARED}
    found = objective.made(values, PromptGroups(torch.arange(2), {"tokens": ["1", "2"], "x": [1, 2]}))
    violations, opportunities = objective.violations(found)
    assert violations.isfinite().all() and (opportunities >= 0).all()
    assert objective.components(found).values.isfinite().all()
    assert within_groups(objective, found, objective.constraints).isfinite().all()
