"""Measures of runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from lightning_cgrpo.objective.bound import Bound
from lightning_cgrpo.reporting.runs import Run
from lightning_cgrpo.reporting.series import Array, Series, mean_and_std, moving_average, on_common_steps

WINDOW = 200
"""Updates of the moving average; at most a quarter of a run."""
TOLERANCE = 0.1
"""A rate passes if violations exceed the allowed rate by at most this share."""
MEAN_TOLERANCE = 0.02
"""A mean passes if it exceeds its bound by at most this share of the bound."""
NEAR_BEST = 0.15
"""A reward within this share of the best final reward counts as reached."""
ROUNDING = 1e-9
Rate = TypeVar("Rate", float, Array)


@dataclass(frozen=True)
class Statistic:
    """Mean and sample standard deviation (NaN for one seed) over seeds."""

    mean: float
    std: float
    seeds: int


def statistic(values: Sequence[float | None]) -> Statistic | None:
    """Statistic of the seeds with values; None without any."""
    known = [value for value in values if value is not None and not math.isnan(value)]
    if not known:
        return None
    return Statistic(float(np.mean(known)), float(np.std(known, ddof=1)) if len(known) > 1 else math.nan, len(known))


def violation(shown: Rate, bound: Bound) -> Rate:
    """Distance of shown rates beyond their threshold; negative if met."""
    assert bound.threshold is not None
    return bound.threshold - shown if bound.lower else shown - bound.threshold


def tolerance(bound: Bound) -> float:
    """Largest violation that passes."""
    return MEAN_TOLERANCE * abs(bound.target) if bound.of_mean else TOLERANCE * bound.target


def violates(value: Statistic | None, bound: Bound) -> bool:
    """True if a mean rate violates its threshold by more than the tolerance; False without rate or threshold."""
    if value is None or bound.threshold is None:
        return False
    return violation(value.mean, bound) > tolerance(bound) + ROUNDING


def smooth(run: Run, tag: str) -> Series:
    """A tag's moving average."""
    bins = run.series.get(tag, Series(np.zeros(0), np.zeros(0)))
    average = moving_average(bins, run.width, min(WINDOW, max(run.updates / 4, 1)))
    # The last bin need not be full.
    return Series(np.minimum(average.steps, run.updates), average.values)


def compliance(rate: Series, bound: Bound) -> Series:
    """1 where a rate passes, within `tolerance`, otherwise 0."""
    return Series(rate.steps, (violation(rate.values, bound) <= tolerance(bound) + ROUNDING).astype(float))


def second_half(rate: Series, bound: Bound, updates: int) -> tuple[float, float, float] | None:
    """Overshoot (largest violation, at least 0), oscillation around the mean, and share of the updates that pass."""
    half = rate.between(updates / 2, np.inf)
    if not len(half):
        return None
    overshoot = max(float(violation(half.values, bound).max()), 0.0)
    return overshoot, float(half.values.std()), compliance(half, bound).mean()


def together(met: Sequence[Series], reward: Series, level: float) -> float | None:
    """First update with the reward at the level and all constraints met; None if never."""
    steps = reward.steps[reward.values >= level]
    for each in met:
        steps = np.intersect1d(steps, each.steps[each.values > 0])
    return float(steps[0]) if len(steps) else None


def near_best(best: float) -> float:
    """The reward that counts as reached, see `NEAR_BEST`."""
    return best - NEAR_BEST * abs(best)


def spread(seeds: Sequence[Series]) -> float | None:
    """Standard deviation over seeds, averaged over updates with at least two seeds; None without."""
    seeds = [series for series in seeds if len(series)]
    if len(seeds) < 2:
        return None
    _, values = on_common_steps(list(seeds))
    both = (~np.isnan(values)).sum(0) > 1
    return float(mean_and_std(values[:, both])[1].mean()) if both.any() else None
