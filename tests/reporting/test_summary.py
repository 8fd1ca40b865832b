"""Statistics against values computed by hand."""

import math

import numpy as np
import pytest

from lightning_cgrpo.objective.constraint import Constraint
from lightning_cgrpo.reporting.series import Series
from lightning_cgrpo.reporting.summary import (
    compliance,
    control,
    final_values,
    kept_from,
    near_best,
    spread,
    statistic,
    time_to,
    together,
    violation,
    window_of,
)


def series(values, every=1):
    return Series(np.arange(len(values)) * float(every), np.array(values, float))


def test_statistic_is_the_sample_deviation():
    found = statistic([1.0, 2.0, 3.0, None, math.nan])
    assert (found.mean, found.std, found.seeds) == (2, 1, 3)
    assert math.isnan(statistic([4.0]).std)
    assert statistic([None]) is None


def test_final_values_are_of_the_last_part():
    scalars = {"a": series([1, 2, 3, 4, 5, 6, 7, 8]), "b": series([1, 2])}
    assert final_values(scalars, 6) == {"a": 7.5}


@pytest.mark.parametrize("mirrored", [False, True])
def test_control_is_of_the_second_half(mirrored):
    """The initial transient, to 0.9, is no overshoot."""
    rates, constraint = np.array([0.9, 0.9, 0.9, 0.1, 0.1, 0.215, 0.23]), Constraint(at_most=0.2)
    if mirrored:
        rates, constraint = 1 - rates, Constraint(at_least=0.8)
    found = control(series(rates), constraint, 6)
    assert found.overshoot == pytest.approx(0.03)
    assert found.oscillation == pytest.approx(np.std([0.1, 0.1, 0.215, 0.23]))
    assert found.held == pytest.approx(3 / 4)  # within .22


def test_overshoot_exists_for_every_run():
    assert control(series([0.5] * 8), Constraint(at_most=0.2), 8).overshoot == pytest.approx(0.3)
    assert control(series([0.1] * 8), Constraint(at_most=0.2), 8).overshoot == 0
    assert control(series([]), Constraint(at_most=0.2), 8) is None


def met(text):
    return series([int(letter) for letter in text], every=10)


def test_kept_from():
    """Met from update 40 on but for one time in nine; before that the untrained policy met it by chance."""
    found = met("1100111101111")
    assert kept_from(found, 0, 130) == 40
    assert kept_from(found, 50, 130) == 50  # not before the reward is there
    assert kept_from(found, None, 130) is None
    # The last update alone is no proof.
    assert kept_from(met("0000000000001"), 0, 130) is None
    assert kept_from(met(""), 0, 130) is None


def test_time_to_feasibility_is_of_all_at_once():
    reward = series([0, 0.5, 0.9, 0.9, 0.9, 0.95], every=10)
    assert together([met("111001"), met("111110")], reward, 0.85) == 20
    assert together([met("110011"), met("111001")], reward, 0.85) == 50
    assert together([met("110011"), met("001100")], reward, 0.85) is None
    assert together([met("")], reward, 0.85) is None


def test_compliance_has_the_tolerance():
    assert compliance(series([0.1, 0.11, 0.12]), Constraint(at_most=0.1)).values.tolist() == [1, 1, 0]
    assert compliance(series([0.8, 0.78, 0.77]), Constraint(at_least=0.8)).values.tolist() == [1, 1, 0]


def test_window():
    assert window_of(8000) == 200 and window_of(400) == 100 and window_of(2) == 1


def test_violation_in_both_orientations():
    assert violation(0.3, Constraint(at_most=0.1)) == pytest.approx(0.2)
    assert violation(0.7, Constraint(at_least=0.8)) == pytest.approx(0.1)
    assert violation(0.9, Constraint(at_least=0.8)) < 0


def test_time_to_reward():
    assert near_best(1.0) == pytest.approx(0.85) and near_best(-1.0) == pytest.approx(-1.15)
    assert time_to(series([0, 0.5, 0.9, 0.2], every=10), 0.9) == 20
    assert time_to(series([0, 0.5]), 0.85) is None


def test_spread_is_over_what_two_seeds_reach():
    assert spread([series([1, 1, 5]), series([3, 1])]) == pytest.approx(np.sqrt(2) / 2)
    assert spread([series([1])]) is None
