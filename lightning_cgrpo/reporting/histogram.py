"""The distribution of effective weights over groups."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from lightning_cgrpo.reporting.series import Array

WIDTH, BINS = 0.025, 81
"""Bins centered at 0, 0.025 … 2 keep the weights 0 and 1 off the edges."""
EDGES: Array = (np.arange(BINS + 1, dtype=np.float64) - 0.5) * WIDTH
CENTERS: Array = np.arange(BINS, dtype=np.float64) * WIDTH


@dataclass(frozen=True)
class Buckets:
    """One update's TensorBoard histogram: extremes, and buckets' upper edges and counts ``[n]``."""

    minimum: float
    maximum: float
    limits: Sequence[float]
    counts: Sequence[float]


def pooled(histograms: Iterable[Buckets]) -> Array:
    """Share ``[BINS]`` of all values per bin (`EDGES`); outliers count in the end bins.

    Each bucket's values are spread evenly over it.
    """
    total = np.zeros(BINS)
    for histogram in histograms:
        limits, counts = np.asarray(histogram.limits, float), np.asarray(histogram.counts, float)
        low = np.concatenate([[-np.inf], limits[:-1]])
        # Buckets are 10 % wide. The extreme values narrow theirs, down to a point for a single multiplier.
        low, high = np.maximum(low, histogram.minimum), np.minimum(limits, histogram.maximum)
        for start, end, count in zip(low[counts > 0], high[counts > 0], counts[counts > 0], strict=True):
            total += count * _shares(start, max(end, start))
    return total / (total.sum() or 1.0)


def _shares(start: float, end: float) -> Array:
    if end - start < 1e-9:
        shares = np.zeros(BINS)
        shares[int(np.clip(np.searchsorted(EDGES, end, side="right") - 1, 0, BINS - 1))] = 1.0
        return shares
    edges = EDGES.copy()
    edges[0], edges[-1] = min(edges[0], start), max(edges[-1], end)
    covered: Array = np.clip(np.minimum(edges[1:], end) - np.maximum(edges[:-1], start), 0.0, None) / (end - start)
    return covered
