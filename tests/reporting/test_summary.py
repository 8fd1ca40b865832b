"""Statistics against values computed by hand."""

import math

import numpy as np
import pytest

from lightning_cgrpo.constraint import Constraint
from lightning_cgrpo.reporting.series import Series
from lightning_cgrpo.reporting.summary import (
    control,
    final_values,
    near_best,
    spread,
    statistic,
    time_to,
    violation,
    window_of,
)


def series(values, every=1):
    return Series(np.arange(len(values)) * float(every), np.array(values, float))


def test_statistic_is_the_sample_deviation():
    found = statistic([1.0, 2.0, 3.0, None, math.nan])
    assert (found.mean, found.std, found.seeds) == (2, 1, 3)
    assert statistic([4.0]).std == 0
    assert statistic([None]) is None


def test_final_values_are_of_the_last_part():
    scalars = {"a": series([1, 2, 3, 4, 5, 6, 7, 8]), "b": series([1, 2])}
    assert final_values(scalars, 6) == {"a": 7.5}


@pytest.mark.parametrize("mirrored", [False, True])
def test_control(mirrored):
    """Violated for 4 updates, then met, then beyond by 0.03 for two; a window of 2 of the 8 updates."""
    rates = np.array([0.5, 0.5, 0.5, 0.5, 0.1, 0.1, 0.23, 0.23])
    constraint = Constraint(at_most=0.2)
    if mirrored:
        rates, constraint = 1 - rates, Constraint(at_least=0.8)
    found = control({"rate/x": series(rates)}, "x", constraint, 8)
    # Moving averages from update 1 on: .5 .5 .5 .3 .1 .165 .23
    assert found.first_feasible == 5
    assert found.overshoot == pytest.approx(0.03)
    assert found.oscillation == pytest.approx(np.std([0.3, 0.1, 0.165, 0.23]))
    assert found.held == pytest.approx(2 / 4)  # within .22


def test_control_of_a_constraint_that_is_never_met():
    found = control({"rate/x": series([0.5] * 8)}, "x", Constraint(at_most=0.2), 8)
    assert found.first_feasible is None and found.overshoot is None and found.held == 0


def test_no_control_without_a_bound_a_rate_or_a_role():
    scalars = {"rate/x": series([0.5] * 8)}
    assert control(scalars, "y", Constraint(at_most=0.2), 8) is None
    assert control(scalars, "x", Constraint(role="monitor"), 8) is None
    assert control(scalars, "x", Constraint(at_most=0.2, role="monitor"), 8) is None


def test_window():
    assert window_of(8000) == 200 and window_of(400) == 100 and window_of(2) == 1


def test_violation_in_both_orientations():
    assert violation(0.3, Constraint(at_most=0.1)) == pytest.approx(0.2)
    assert violation(0.7, Constraint(at_least=0.8)) == pytest.approx(0.1)
    assert violation(0.9, Constraint(at_least=0.8)) < 0


def test_time_to_reward():
    assert near_best(1.0) == pytest.approx(0.85) and near_best(-1.0) == pytest.approx(-1.15)
    assert time_to(series([0, 0.5, 0.9, 0.2], every=10), 0.85) == 20
    assert time_to(series([0, 0.5]), 0.85) is None


def test_spread_is_over_what_two_seeds_reach():
    assert spread([series([1, 1, 5]), series([3, 1])]) == pytest.approx(np.sqrt(2) / 2)
    assert spread([series([1])]) is None
