"""Binning, smoothing and means over seeds, against values computed by hand."""

import numpy as np
import pytest

from lightning_cgrpo.reporting.series import Series, bin_width, binned, mean_and_std, moving_average, on_common_steps


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


def test_moving_average_begins_where_its_window_is_full():
    """Bins of 10 updates: the window of 20 is full after 20 updates."""
    bins = series([5, 15, 25, 35, 45], [1, 2, 3, 4, 10])
    got = moving_average(bins, 10, 20)
    assert got.steps.tolist() == [20, 30, 40, 50]
    assert got.values == pytest.approx([1.5, 2.5, 3.5, 7])
    assert moving_average(bins, 10, 4).values.tolist() == [1, 2, 3, 4, 10]
    # A bin without a value counts to the window's length.
    assert moving_average(series([5, 25], [1, 3]), 10, 20).values.tolist() == [3]
    assert len(moving_average(series([], []), 10, 20)) == 0


def test_seeds_of_different_length_count_where_they_are():
    steps, values = on_common_steps([series([1, 3, 5], [1, 1, 1]), series([1, 3], [3, 5])])
    assert steps.tolist() == [1, 3, 5]
    mean, std = mean_and_std(values)
    assert mean.tolist() == [2, 3, 1]
    assert std == pytest.approx([np.sqrt(2), np.sqrt(8), 0])
