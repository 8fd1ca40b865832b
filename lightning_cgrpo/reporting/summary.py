"""Measures of runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from lightning_cgrpo.objective.constraint import Constraint
from lightning_cgrpo.reporting.series import FLOAT_DIGITS, Array, Series, mean_and_std, on_common_steps, rounded

WINDOW = 200
"""Updates of the moving average; at most a quarter of a run."""
TOLERANCE = 0.1
"""A rate passes if violations exceed the allowed rate by at most this share."""
MEAN_TOLERANCE = 0.02
"""A mean passes if it exceeds its bound by at most this share of the bound."""
NEAR_BEST = 0.15
"""A reward within this share of the best final reward counts as reached."""
KEPT, REST = 0.8, 1 / 4
"""A constraint is kept from the update on at which the share KEPT of the rest, at least REST of the run, meets it."""
ROUNDING = 1e-9
Rate = TypeVar("Rate", float, Array)


@dataclass(frozen=True)
class Control:
    """A constraint's moving average in the second half of training.

    Args:
        overshoot: largest violation, at least 0.
        oscillation: standard deviation around the rate's mean.
        held: share of the updates at which the rate passes, see `tolerance`.
    """

    overshoot: float
    oscillation: float
    held: float


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


def last_part(updates: int, share: float, end: float) -> float:
    """First update of the last `share` of `updates`, at most the last logged step `end`."""
    return min(updates * (1 - share), end)


def final_values(scalars: Mapping[str, Series], start: float) -> dict[str, float]:
    """Means over the updates from `start` on, by tag."""
    last = {tag: series.between(start, np.inf) for tag, series in scalars.items()}
    return {tag: rounded(series.mean(), FLOAT_DIGITS) for tag, series in last.items() if len(series)}


def violation(rate: Rate, constraint: Constraint) -> Rate:
    """Distance of rates beyond their bound; negative if met."""
    assert constraint.bound.threshold is not None
    return constraint.bound.threshold - rate if constraint.bound.lower else rate - constraint.bound.threshold


def tolerance(constraint: Constraint) -> float:
    """Largest violation that passes."""
    if constraint.bound.of_mean:
        return MEAN_TOLERANCE * abs(constraint.bound.target)
    return TOLERANCE * constraint.bound.target


def window_of(updates: float) -> float:
    """Updates in the moving average of a run."""
    return min(WINDOW, max(updates / 4, 1))


def compliance(rate: Series, constraint: Constraint) -> Series:
    """1 where a rate passes, within `tolerance`, otherwise 0."""
    met = violation(rate.values, constraint) <= tolerance(constraint) + ROUNDING
    return Series(rate.steps, met.astype(float))


def control(rate: Series, constraint: Constraint, updates: int) -> Control | None:
    """A rate's `Control`; None without values in the second half."""
    half = rate.between(updates / 2, np.inf)
    if not len(half):
        return None
    return Control(
        max(float(violation(half.values, constraint).max()), 0.0),
        float(half.values.std()),
        compliance(half, constraint).mean(),
    )


def kept_from(met: Series, start: float | None, updates: int) -> float | None:
    """First update from `start` on, from which the constraint is met in a share `KEPT` of the updates; None without.

    The last `REST` of all `updates` must follow, because the last update alone proves nothing.
    """
    if start is None or not len(met):
        return None
    counts = np.arange(len(met), 0, -1)
    shares = np.cumsum(met.values[::-1])[::-1] / counts
    able = (met.values > 0) & (shares >= KEPT - ROUNDING) & (met.steps >= start)
    found = met.steps[able & (met.steps <= updates * (1 - REST))]
    return float(found[0]) if len(found) else None


def together(met: Sequence[Series], reward: Series, level: float) -> float | None:
    """First update with the reward at the level and all constraints met; None if never."""
    steps = reward.steps[reward.values >= level]
    for each in met:
        steps = np.intersect1d(steps, each.steps[each.values > 0])
    return float(steps[0]) if len(steps) else None


def near_best(best: float) -> float:
    """The reward that counts as reached, see `NEAR_BEST`."""
    return best - NEAR_BEST * abs(best)


def time_to(series: Series, level: float) -> float | None:
    """First step at which a series reaches a level; None if never."""
    above = np.flatnonzero(series.values >= level)
    return float(series.steps[above[0]]) if len(above) else None


def spread(seeds: Sequence[Series]) -> float | None:
    """Standard deviation over seeds, averaged over updates with at least two seeds; None without."""
    seeds = [series for series in seeds if len(series)]
    if len(seeds) < 2:
        return None
    _, values = on_common_steps(list(seeds))
    both = (~np.isnan(values)).sum(0) > 1
    return float(mean_and_std(values[:, both])[1].mean()) if both.any() else None
