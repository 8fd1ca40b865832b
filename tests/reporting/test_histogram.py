"""TensorBoard's buckets become shares of the bins."""

import numpy as np
import pytest

from lightning_cgrpo.reporting.histogram import BINS, CENTERS, Buckets, pooled


def test_one_value_stays_in_one_bin():
    """Buckets are 10 % wide, but smallest and largest value are known."""
    counts = pooled([Buckets(0.3, 0.3, [0.28, 0.308, 0.34], [0, 5, 0])])
    assert counts.sum() == pytest.approx(5)
    assert CENTERS[counts > 0] == pytest.approx([0.3])


def test_two_peaks():
    counts = pooled([Buckets(0, 1, [1e-12, 0.5, 0.95, 1.05], [3, 0, 0, 7])] * 2)
    assert counts[0] == pytest.approx(6)
    assert counts[CENTERS >= 0.95].sum() == pytest.approx(14)
    assert counts.sum() == pytest.approx(20)


def test_a_bucket_is_spread_evenly():
    counts = pooled([Buckets(0.0125, 0.1125, [0.0125, 0.1125], [0, 8])])
    assert counts[1:5] == pytest.approx([2, 2, 2, 2])


def test_what_lies_outside_counts_at_the_ends():
    counts = pooled([Buckets(-1, 7, [-1, -0.9, 6, 7], [1, 0, 0, 3])])
    assert counts[0] == pytest.approx(1) and counts[BINS - 1] == pytest.approx(3)
    assert pooled([]).sum() == 0 and len(pooled([])) == BINS


def test_inner_edges_are_exact():
    total = pooled([Buckets(0, 2, list(np.linspace(0.1, 2, 20)), [1] * 20)])
    assert total.sum() == pytest.approx(20)
