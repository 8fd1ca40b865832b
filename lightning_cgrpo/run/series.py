"""A tag's values over training."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

MAX_BINS = 100
"""Bins of series in figures and saved runs, so both draw the same."""
MISSING = 1.5
"""Usual intervals between two values, beyond which values are missing between them."""
FLOAT_DIGITS = 6
"""Significant digits of logged 32-bit numbers."""


@dataclass(frozen=True)
class Series:
    """Values ``[n]`` at rising steps ``[n]``: updates from 0, or middles of bins."""

    steps: Array
    values: Array

    def __len__(self) -> int:
        return len(self.steps)

    def between(self, start: float, end: float) -> Series:
        """The part in [start, end)."""
        inside = (self.steps >= start) & (self.steps < end)
        return Series(self.steps[inside], self.values[inside])

    def mean(self) -> float:
        return float(self.values.mean()) if len(self) else float("nan")

    def rounded(self, digits: int) -> Series:
        return Series(self.steps, np.array([rounded(value, digits) for value in self.values.tolist()], float))


def rounded(value: float, digits: int) -> float:
    """Round to significant digits."""
    return float(f"{value:.{digits}g}")


def interval(steps: Array) -> float:
    """Median number of updates between logged values."""
    return float(np.median(np.diff(steps))) if len(steps) > 1 else 1.0


def bin_width(updates: float, spacing: float) -> float:
    """Smallest round width in updates (1, 2, 5, 10, …) for at most `MAX_BINS` bins, at least `spacing`."""
    needed = max(updates / MAX_BINS, spacing, 1.0)
    power = 10.0 ** np.floor(np.log10(needed))
    return float(next(factor * power for factor in (1, 2, 5, 10) if factor * power >= needed * (1 - 1e-9)))


def binned(series: Series, width: float) -> Series:
    """Means over bins of `width` updates, at their middles."""
    number = np.floor(series.steps / width + 1e-9)
    bins, index = np.unique(number, return_inverse=True)
    means = np.bincount(index, series.values, len(bins)) / np.bincount(index, minlength=len(bins))
    return Series((bins + 0.5) * width, means)


def on_common_steps(seeds: list[Series]) -> tuple[Array, Array]:
    """Steps ``[n]`` of all series, and the series interpolated there, ``[seeds, n]``.

    Values are NaN outside a series, and where a series misses values that its usual interval would have.
    """
    steps = np.unique(np.concatenate([series.steps for series in seeds]))
    gaps = np.flatnonzero(np.diff(steps) > MISSING * interval(steps))
    steps = np.insert(steps, gaps + 1, (steps[gaps] + steps[gaps + 1]) / 2)  # a point at which a line breaks
    rows = []
    for series in seeds:
        row = np.interp(steps, series.steps, series.values, left=np.nan, right=np.nan)
        after = np.clip(np.searchsorted(series.steps, steps), 1, max(len(series) - 1, 1))
        apart = np.diff(series.steps, prepend=series.steps[0])[np.minimum(after, len(series) - 1)]
        row[(apart > MISSING * interval(series.steps)) & ~np.isin(steps, series.steps)] = np.nan
        rows.append(row)
    return steps, np.stack(rows)


def mean_and_std(values: Array) -> tuple[Array, Array]:
    """Mean and sample standard deviation ``[n]`` over ``[seeds, n]``, ignoring NaN; 0 for single values."""
    known = ~np.isnan(values)
    count = known.sum(0)
    mean = np.where(known, values, 0.0).sum(0) / np.where(count, count, np.nan)
    squares = np.where(known, (values - mean) ** 2, 0.0).sum(0)
    return mean, np.sqrt(squares / np.maximum(count - 1, 1))
