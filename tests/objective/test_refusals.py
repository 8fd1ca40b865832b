"""Whatever is declared is an objective, or is refused in one line that names the mistake."""

import math
from dataclasses import fields

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.rollout import PromptGroups, Signal
from lightning_cgrpo.multipliers.units import within_groups
from lightning_cgrpo.objective.objective import Constraint, Objective, ObjectiveError

DECLARED = {"goal": "indicator", "lava": "indicator", "tokens": "number", "score": "any"}
LATER = {"start": 0.3, "over": 30}


@pytest.mark.parametrize(
    ("constraint", "keyword"),
    [
        # bounds
        ({}, "at_most:"),
        ({"at_most": 0.1, "at_least": 0.05}, "one bound"),
        ({"at_most": 0.1, "mean_at_most": 5}, "one bound"),
        ({"at_most": 5}, r"did you mean 0\.05"),
        ({"at_least": 99.5}, r"did you mean 0\.995"),
        ({"at_least": -0.1, "role": "monitor"}, r"in \[0, 1\]"),
        ({"at_least": math.nan}, r"in \[0, 1\]"),
        ({"at_most": 1}, "can be violated"),
        ({"at_most": 0.1, "role": "constraint"}, "role"),
        ({"at_most": 0.1, "signal": 5}, "signal"),
        ({"at_most": 0.1, "signal": " "}, "signal"),
        ({"mean_at_most": 10**400, "signal": "tokens"}, "mean_at_most: as a number"),
        ({"mean_at_most": 5, "range": [0, 10**400], "signal": "tokens"}, "range: as two numbers"),
        # numbers
        ({"at_most": 0.1, "signal": "tokens"}, "violated_above"),
        ({"at_most": 0.1, "violated_above": 0.5}, "indicator .* got violated_above: or violated_below:"),
        ({"at_most": 0.1, "signal": "tokens", "violated_above": 5, "violated_below": 1}, "both"),
        ({"at_most": 0.1, "signal": "tokens", "violated_below": math.nan}, "finite violated_below"),
        ({"at_least": 0.9, "signal": "tokens", "violated_above": 5}, r"try at_most: 0\.1"),
        ({"at_most": 0.1, "signal": "tokens", "violated_above": {"columns": "budget"}}, r"\{column: NAME\}"),
        ({"at_most": 0.1, "signal": "tokens", "violated_below": {"column": 3}}, r"violated_below: as a number, or as"),
        # means
        ({"mean_at_most": 0.5}, "whose mean is a rate, try at_most:"),
        ({"mean_at_most": "few", "signal": "tokens"}, "'few'"),
        ({"mean_at_least": 5, "violated_above": 3, "signal": "tokens"}, "mean_at_least and violated_above"),
        ({"mean_at_most": 5, "range": [9, 7], "signal": "tokens"}, "least and greatest"),
        ({"mean_at_most": 5, "range": [5, 5], "signal": "tokens"}, "least and greatest"),
        ({"mean_at_most": 5, "range": [0, math.inf], "signal": "tokens"}, "least and greatest"),
        ({"mean_at_most": 5, "range": [5, 9], "signal": "tokens"}, "within its range"),
        ({"mean_at_most": 5, "range": [1, 5], "signal": "tokens"}, "within its range"),
        ({"mean_at_most": math.inf, "signal": "tokens"}, "finite mean_at_most"),
        ({"mean_at_most": 5, "range": [7, 9], "signal": "tokens"}, r"within its range: \[7, 9\]"),
        ({"mean_at_most": 5, "range": 9, "signal": "tokens"}, "range"),
        ({"at_most": 0.5, "range": [0, 1], "signal": "score"}, "range: only"),
        # aims
        ({"at_least": 0.95, "aim": 0.9}, "at least as strict as its bound, at_least: 0.95, but got 0.9"),
        ({"at_most": 0.1, "aim": -0.1}, "strict"),
        ({"at_most": 0.1, "aim": 0.05, "role": "monitor"}, "no aim:"),
        ({"mean_at_most": 20, "aim": 21, "signal": "tokens"}, "strict"),
        # schedules
        ({"at_most": 0.1, "start": 0.3}, "over:"),
        ({"at_most": 0.1, "over": 30}, "start:"),
        ({"at_most": 0.1, **LATER, "start": 0.05}, "larger start:"),
        ({"at_least": 0.9, **LATER, "start": 0.95}, "smaller start:"),
        ({"at_most": 0.1, **LATER, "start": 3}, "start: like its bound"),
        ({"at_most": 0.1, "start": [0.3, 0.2], "over": 30}, "start: as a number"),
        ({"at_most": 0.1, **LATER, "start": "loose"}, "'loose'"),
        ({"at_most": 0.1, **LATER, "role": "monitor"}, "no schedule"),
        # subsets
        ({"at_most": 0.1, "by": "steps"}, r"column 'steps' alone, try by: \{COLUMN: \[VALUE"),
        ({"at_most": 0.1, "by": {"steps": []}}, "different values"),
        ({"at_most": 0.1, "by": {"steps": [1, 1]}}, "different values"),
        ({"at_most": 0.1, "where": {}}, "where:"),
        ({"at_most": 0.1, "where": {"steps": 1}, "by": {"steps": [1]}}, "both"),
        ({"mean_at_most": 0.1, "signal": "kl", "where": {"steps": 1}}, "all answers"),
        ({"at_most": 0.1, "signal": "kl"}, "try mean_at_most"),
        # conditions
        ({"at_most": 0.1, "given": 5}, "given: as a signal's name"),
        ({"at_most": 0.1, "given": "gaol"}, "given: of constraint 'c' to name a signal .* Did you mean 'goal'"),
        ({"at_most": 0.1, "given": "lava"}, "another signal than its own"),
        ({"at_most": 0.1, "given": "tokens"}, "an indicator, but got the number 'tokens', which has no limit"),
        ({"at_most": 0.1, "given": "kl"}, "'kl'"),
        ({"mean_at_most": 0.1, "signal": "kl", "given": "goal"}, "all answers"),
        # names
        ({"at_most": 0.1, "signal": "lavva"}, "Did you mean 'lava'"),
        ({"role": "monitor", "signal": "xyzzy"}, r"'xyzzy'\.$"),
    ],
)
def test_constraints(constraint: dict, keyword: str) -> None:
    refused({"constraints": {"c": {"signal": "lava", **constraint}}}, keyword)


@pytest.mark.parametrize(
    ("objective", "keyword"),
    [
        ({"reward": ""}, "reward"),
        ({"reward": {"goal": 1.0, "score": math.inf}}, "finite weight"),
        ({"reward": {"goal": True}}, "finite weight for reward 'goal', but got True"),
        ({"reward": {"goal": 10**400}}, "finite weight"),
        ({"constraints": {" ": {"signal": "lava", "at_most": 0.1}}}, "to have a name"),
        ({"reward": "gaol"}, "Did you mean 'goal'"),
        ({"constraints": {"lava": 0.1}}, "at_most: 0.01"),
        ({"constraints": {"reward": {"at_most": 0.1}}}, "'reward'"),
        ({"constraints": {True: {"at_most": 0.1}}}, "quotes"),
        ({"reward": {False: 1.0}}, "got False, try quotes"),
        ({"constraints": {"goal": {"at_most": 0.1}, "lava": {"at_most": 2}, "score": {}}}, "'lava'"),
        ({"constraints": {"r/l=a": {"at_most": 0.2}, "r": {"at_most": 0.1, "by": {"l": ["a", "b"]}}}}, "'r/l=a'"),
        ({"constraints": {"low": {"signal": "lava", "at_least": 0.9}, "high": {"signal": "lava", "at_most": 0.5}}},
         "allow some rate"),
        ({"constraints": {"low": {"signal": "tokens", "mean_at_least": 9},
                          "high": {"signal": "tokens", "mean_at_most": 5}}}, "allow some mean"),
        ({"constraints": ["lava"]}, "mapping"),
    ],
)  # fmt: skip
def test_objectives(objective: dict, keyword: str) -> None:
    refused(objective, keyword)


def refused(objective: dict, keyword: str) -> None:
    with pytest.raises(ObjectiveError, match=keyword) as caught:
        Objective.declared({"reward": "goal", **objective}).check_signals(DECLARED)
    assert isinstance(caught.value, UserError) and "\n" not in str(caught.value)


def test_what_fits_passes() -> None:
    Objective(
        {"goal": 1.0, "tokens": 0.1},
        {
            "lava": Constraint(at_most=0),
            "seen": Constraint(at_most=1, signal="lava", role="monitor"),
            "short": Constraint(at_most=0.1, signal="tokens", violated_below=1.0),
            "score": Constraint(at_least=1),
            "high": Constraint(at_most=0.5, signal="score", violated_above=0.9),
            "brief": Constraint(mean_at_most=3, range=(0, 24), signal="tokens"),
            "low": Constraint(at_most=0.6, signal="score", violated_below=0.9),
            "long": Constraint(at_most=0.1, signal="tokens", violated_above={"column": "budget"}, given="goal"),
        },
    ).check_signals(DECLARED)


NUMBERS = st.one_of(st.none(), st.booleans(), st.integers(-2, 120), st.floats(), st.text(max_size=3))
VALUES = st.one_of(
    NUMBERS,
    st.lists(NUMBERS, max_size=3),
    st.dictionaries(
        st.sampled_from(["tokens", "x"]), st.one_of(NUMBERS, st.lists(st.integers(1, 3), max_size=3)), max_size=2
    ),
)
DECLARATIONS = st.dictionaries(st.sampled_from([field.name for field in fields(Constraint)]), VALUES, max_size=4)
NAMES = st.sampled_from(["goal", "lava", "tokens", "score", "typo"])


@settings(max_examples=600, deadline=None)
@given(DECLARATIONS, NAMES)
def test_whatever_is_declared_is_an_objective_or_one_line(declared: dict, signal: str) -> None:
    """And what is an objective can be measured: thresholds in force, sums, spread and components are numbers."""
    config = {"reward": "goal", "constraints": {"c": {**declared, "signal": signal}}}
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
