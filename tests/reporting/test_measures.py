"""Statistics against values computed by hand."""

import math

import numpy as np
import pytest

from lightning_cgrpo.objective.bound import Bound
from lightning_cgrpo.reporting.measures import compliance, second_half, spread, statistic, together, violates
from lightning_cgrpo.reporting.series import Series


def series(values, every=1):
    return Series(np.arange(len(values)) * float(every), np.array(values, float))


def rate(direction, threshold):
    return Bound("rate", direction, threshold)


def test_statistic_is_the_sample_deviation():
    found = statistic([1.0, 2.0, 3.0, None, math.nan])
    assert (found.mean, found.std, found.seeds) == (2, 1, 3)
    assert math.isnan(statistic([4.0]).std) and statistic([None]) is None


@pytest.mark.parametrize("mirrored", [False, True])
def test_control_is_of_the_second_half(mirrored):
    """The initial transient, to 0.9, is no overshoot."""
    rates, bound = np.array([0.9, 0.9, 0.9, 0.1, 0.1, 0.215, 0.23]), rate("at_most", 0.2)
    if mirrored:
        rates, bound = 1 - rates, rate("at_least", 0.8)
    overshoot, oscillation, held = second_half(series(rates), bound, 6)
    assert overshoot == pytest.approx(0.03) and held == pytest.approx(3 / 4)  # within .22
    assert oscillation == pytest.approx(np.std([0.1, 0.1, 0.215, 0.23]))
    assert second_half(series([0.1] * 8), rate("at_most", 0.2), 8)[0] == 0
    assert second_half(series([]), bound, 8) is None


def test_time_to_feasibility_is_of_all_at_once():
    def met(text):
        return series([int(letter) for letter in text], every=10)

    reward = series([0, 0.5, 0.9, 0.9, 0.9, 0.95], every=10)
    assert together([met("111001"), met("111110")], reward, 0.85) == 20
    assert together([met("110011"), met("111001")], reward, 0.85) == 50
    assert together([met("110011"), met("001100")], reward, 0.85) is None


def test_tolerance_is_a_share_of_the_allowed_violations():
    assert compliance(series([0.1, 0.11, 0.12]), rate("at_most", 0.1)).values.tolist() == [1, 1, 0]
    assert compliance(series([0.8, 0.78, 0.77]), rate("at_least", 0.8)).values.tolist() == [1, 1, 0]
    mean = Bound("mean", "at_most", 20.0)
    assert not violates(statistic([20.4]), mean) and violates(statistic([20.5]), mean)


def test_spread_is_over_what_two_seeds_reach():
    assert spread([series([1, 1, 5]), series([3, 1])]) == pytest.approx(np.sqrt(2) / 2)
    assert spread([series([1])]) is None
