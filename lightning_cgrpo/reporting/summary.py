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
"""Updates of the moving average of rewards and rates; at most a quarter of a run."""
TOLERANCE = 0.1
"""A rate still meets its threshold if violations exceed the allowed rate by this share."""
NEAR_BEST = 0.15
"""A reward this share below the best final reward counts as reached."""
KEPT, REST = 0.8, 1 / 4
"""A constraint is kept from the update on at which it is met in the share KEPT of all later updates. At least the
share REST of the run must follow."""
ROUNDING = 1e-9
Rate = TypeVar("Rate", float, Array)


@dataclass(frozen=True)
class Control:
    """A constraint in the second half of training, by its moving average.

    Args:
        overshoot: the largest violation, at least 0.
        oscillation: standard deviation around the rate's own mean.
        held: share of the updates within threshold and tolerance.
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
    """The statistic of the seeds with a value; None without any."""
    known = [value for value in values if value is not None and not math.isnan(value)]
    if not known:
        return None
    return Statistic(float(np.mean(known)), float(np.std(known, ddof=1)) if len(known) > 1 else math.nan, len(known))


def last_part(updates: int, share: float, end: float) -> float:
    """The start of the last share of a run's updates, at most the last logged step `end`."""
    return min(updates * (1 - share), end)


def final_values(scalars: Mapping[str, Series], start: float) -> dict[str, float]:
    """Means over the updates from `start` on, by tag."""
    last = {tag: series.between(start, np.inf) for tag, series in scalars.items()}
    return {tag: rounded(series.mean(), FLOAT_DIGITS) for tag, series in last.items() if len(series)}


def violation(rate: Rate, constraint: Constraint) -> Rate:
    """The distance of rates beyond their bound; negative if met."""
    assert constraint.bound is not None
    return constraint.bound - rate if constraint.at_least is not None else rate - constraint.bound


def tolerance(constraint: Constraint) -> float:
    """The violation that still passes."""
    return TOLERANCE * constraint.max_violation_rate


def window_of(updates: float) -> float:
    """Updates of the moving average."""
    return min(WINDOW, max(updates / 4, 1))


def compliance(rate: Series, constraint: Constraint) -> Series:
    """1 where a rate meets its threshold within the tolerance, otherwise 0."""
    met = violation(rate.values, constraint) <= tolerance(constraint) + ROUNDING
    return Series(rate.steps, met.astype(float))


def control(rate: Series, constraint: Constraint, updates: int) -> Control | None:
    """The control of a constraint, from its moving average; None without values."""
    half = rate.between(updates / 2, np.inf)
    if not len(half):
        return None
    return Control(
        max(float(violation(half.values, constraint).max()), 0.0),
        float(half.values.std()),
        compliance(half, constraint).mean(),
    )


def kept_from(met: Series, start: float | None, updates: int) -> float | None:
    """The first update, not before `start`, from which on a constraint is met in `KEPT` of the following updates.

    The last `REST` of all `updates` must follow: the last update alone proves nothing.
    """
    if start is None or not len(met):
        return None
    counts = np.arange(len(met), 0, -1)
    shares = np.cumsum(met.values[::-1])[::-1] / counts
    able = (met.values > 0) & (shares >= KEPT - ROUNDING) & (met.steps >= start)
    found = met.steps[able & (met.steps <= updates * (1 - REST))]
    return float(found[0]) if len(found) else None


def together(met: Sequence[Series], reward: Series, level: float) -> float | None:
    """The first update with the reward at the level and all constraints met."""
    steps = reward.steps[reward.values >= level]
    for each in met:
        steps = np.intersect1d(steps, each.steps[each.values > 0])
    return float(steps[0]) if len(steps) else None


def near_best(best: float) -> float:
    """The level that is near the best final reward."""
    return best - NEAR_BEST * abs(best)


def time_to(series: Series, level: float) -> float | None:
    """The first step at which a series reaches a level."""
    above = np.flatnonzero(series.values >= level)
    return float(series.steps[above[0]]) if len(above) else None


def spread(seeds: Sequence[Series]) -> float | None:
    """Standard deviation over seeds, averaged over the updates of at least two seeds."""
    seeds = [series for series in seeds if len(series)]
    if len(seeds) < 2:
        return None
    _, values = on_common_steps(list(seeds))
    both = (~np.isnan(values)).sum(0) > 1
    return float(mean_and_std(values[:, both])[1].mean()) if both.any() else None
