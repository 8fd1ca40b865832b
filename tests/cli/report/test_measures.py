"""Statistics, bins and means over seeds, against values computed by hand."""

import math

import numpy as np
import pytest

from lightning_cgrpo.cli.report.measures import statistic, violates
from lightning_cgrpo.objective.bound import Bound
from lightning_cgrpo.run.series import Series, bin_width, binned, mean_and_std, on_common_steps


def test_statistic_is_the_sample_deviation():
    found = statistic([1.0, 2.0, 3.0, None, math.nan])
    assert (found.mean, found.std, found.seeds) == (2, 1, 3)
    assert math.isnan(statistic([4.0]).std) and statistic([None]) is None


def test_tolerance_is_a_share_of_the_allowed_violations():
    for bound, within, beyond in (
        (Bound("rate", "at_most", 0.1), (0.1, 0.11), 0.12),
        (Bound("rate", "at_least", 0.8), (0.8, 0.78), 0.77),
        (Bound("mean", "at_most", 20.0), (20.0, 20.4), 20.5),
    ):
        assert [violates(statistic([value]), bound) for value in (*within, beyond)] == [False, False, True]


def series(steps, values):
    return Series(np.array(steps, float), np.array(values, float))


@pytest.mark.parametrize(
    ("updates", "spacing", "width"),
    [(8000, 10, 100), (300, 10, 10), (300, 1, 5), (100, 1, 1), (100, 7, 10), (12_000, 10, 200), (3, 1, 1)],
)
def test_bins_are_round_and_at_most_a_hundred(updates, spacing, width):
    assert bin_width(updates, spacing) == width
    assert updates / width <= 100 or width == 1


def test_binned_means_lie_at_the_middles_and_empty_bins_are_left_out():
    got = binned(series([0, 1, 2, 3, 8, 9], [1, 3, 5, 7, 2, 4]), 2)
    assert got.steps.tolist() == [1, 3, 9]
    assert got.values.tolist() == [2, 6, 3]


def test_seeds_of_different_length_count_where_they_are():
    steps, values = on_common_steps([series([1, 3, 5], [1, 1, 1]), series([1, 3], [3, 5])])
    assert steps.tolist() == [1, 3, 5]
    mean, std = mean_and_std(values)
    assert mean.tolist() == [2, 3, 1]
    assert std == pytest.approx([np.sqrt(2), np.sqrt(8), 0])
