"""TensorBoard's buckets become shares of the bins."""

import numpy as np
import pytest

from lightning_cgrpo.reporting.histogram import BINS, CENTERS, Buckets, pooled


def test_one_value_stays_in_one_bin():
    """Buckets are 10 % wide, but smallest and largest value are known."""
    shares = pooled([Buckets(0.3, 0.3, [0.28, 0.308, 0.34], [0, 5, 0])])
    assert shares.sum() == pytest.approx(1)
    assert CENTERS[shares > 0] == pytest.approx([0.3])


def test_two_peaks():
    shares = pooled([Buckets(0, 1, [1e-12, 0.5, 0.95, 1.05], [3, 0, 0, 7])] * 2)
    assert shares[0] == pytest.approx(0.3)
    assert shares[CENTERS >= 0.95].sum() == pytest.approx(0.7)
    assert shares.sum() == pytest.approx(1)


def test_a_bucket_is_spread_evenly():
    shares = pooled([Buckets(0.0125, 0.1125, [0.0125, 0.1125], [0, 8])])
    assert shares[1:5] == pytest.approx([0.25] * 4)


def test_what_lies_outside_shares_at_the_ends():
    shares = pooled([Buckets(-1, 7, [-1, -0.9, 6, 7], [1, 0, 0, 3])])
    assert shares[0] == pytest.approx(0.25) and shares[BINS - 1] == pytest.approx(0.75)
    assert pooled([]).sum() == 0 and len(pooled([])) == BINS


def test_inner_edges_are_exact():
    total = pooled([Buckets(0, 2, list(np.linspace(0.1, 2, 20)), [1] * 20)])
    assert total.sum() == pytest.approx(1)
