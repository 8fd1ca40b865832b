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
        values = [round_significant(value, digits) for value in self.values.tolist()]
        return Series(self.steps, np.array(values, float))


def round_significant(value: float, digits: int) -> float:
    """Round to significant digits."""
    return float(f"{value:.{digits}g}")


def usual_interval(steps: Array) -> float:
    """Median number of updates between logged values."""
    return float(np.median(np.diff(steps))) if len(steps) > 1 else 1.0


def bin_width(updates: float, spacing: float) -> float:
    """Smallest round width in updates (1, 2, 5, 10, …) for at most `MAX_BINS` bins, at least `spacing`."""
    needed = max(updates / MAX_BINS, spacing, 1.0)
    power = 10.0 ** np.floor(np.log10(needed))
    round_widths = [factor * power for factor in (1, 2, 5, 10)]
    return float(next(width for width in round_widths if width >= needed * (1 - 1e-9)))


def binned(series: Series, width: float) -> Series:
    """Means over bins of `width` updates, at their middles."""
    numbers = np.floor(series.steps / width + 1e-9)  # the bin of each value
    bins, index = np.unique(numbers, return_inverse=True)
    sums = np.bincount(index, series.values, len(bins))
    counts = np.bincount(index, minlength=len(bins))
    return Series((bins + 0.5) * width, sums / counts)


def on_common_steps(seeds: list[Series]) -> tuple[Array, Array]:
    """Steps ``[n]`` of all series, and the series interpolated there, ``[seeds, n]``.

    Values are NaN outside a series, and where a series misses values that its usual interval would have.
    """
    # All steps, and a step within each gap that all series have, at which a line breaks.
    steps = np.unique(np.concatenate([series.steps for series in seeds]))
    gaps = np.flatnonzero(np.diff(steps) > MISSING * usual_interval(steps))
    middles = (steps[gaps] + steps[gaps + 1]) / 2
    steps = np.insert(steps, gaps + 1, middles)  # [n]
    rows = []
    for series in seeds:
        row = np.interp(steps, series.steps, series.values, left=np.nan, right=np.nan)
        # The interval of the series in which each step lies, by the number of its right end.
        right = np.clip(np.searchsorted(series.steps, steps), 1, max(len(series) - 1, 1))
        widths = np.diff(series.steps, prepend=series.steps[0])
        width = widths[np.minimum(right, len(series) - 1)]  # [n]
        # No value is interpolated over an interval in which values are missing.
        missing = (width > MISSING * usual_interval(series.steps)) & ~np.isin(steps, series.steps)
        row[missing] = np.nan
        rows.append(row)
    return steps, np.stack(rows)


def mean_and_std(values: Array) -> tuple[Array, Array]:
    """Mean and sample standard deviation ``[n]`` over ``[seeds, n]``, ignoring NaN; 0 for single values."""
    known = ~np.isnan(values)  # [seeds, n]
    count = known.sum(0)  # [n]
    mean = np.where(known, values, 0.0).sum(0) / np.where(count, count, np.nan)
    squares = np.where(known, (values - mean) ** 2, 0.0).sum(0)
    return mean, np.sqrt(squares / np.maximum(count - 1, 1))
