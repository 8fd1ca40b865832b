"""Statistics against values computed by hand."""

import math

from lightning_cgrpo.cli.report.measures import statistic, violates
from lightning_cgrpo.objective.bound import Bound


def rate(direction, threshold):
    return Bound("rate", direction, threshold)


def test_statistic_is_the_sample_deviation():
    found = statistic([1.0, 2.0, 3.0, None, math.nan])
    assert (found.mean, found.std, found.seeds) == (2, 1, 3)
    assert math.isnan(statistic([4.0]).std) and statistic([None]) is None


def test_tolerance_is_a_share_of_the_allowed_violations():
    assert [violates(statistic([value]), rate("at_most", 0.1)) for value in (0.1, 0.11, 0.12)] == [False, False, True]
    assert [violates(statistic([value]), rate("at_least", 0.8)) for value in (0.8, 0.78, 0.77)] == [False, False, True]
    mean = Bound("mean", "at_most", 20.0)
    assert not violates(statistic([20.4]), mean) and violates(statistic([20.5]), mean)
