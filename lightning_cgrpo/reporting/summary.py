"""What a run comes to: final values, how well its constraints were kept, and how seeds differ."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from lightning_cgrpo.objective.constraint import Constraint
from lightning_cgrpo.reporting.series import FLOAT_DIGITS, Array, Series, mean_and_std, on_common_steps, rounded

WINDOW = 200
"""Updates of the moving average that rewards and constraints are judged by; a quarter of a run that is shorter than
four times that."""
TOLERANCE = 0.1
"""A rate is taken to meet its threshold if the rate of violation exceeds it by no more than this share of it."""
NEAR_BEST = 0.15
"""A reward this share below the best final one counts as reached."""
KEPT, REST = 0.8, 1 / 4
"""A constraint is kept from where it is met at this share of all later updates, if these are so many of the run's."""
ROUNDING = 1e-9
Rate = TypeVar("Rate", float, Array)


@dataclass(frozen=True)
class Control:
    """How a constraint was kept over the second half of training, by the moving average of its rate.

    Args:
        overshoot: the largest violation, 0 if there is none.
        oscillation: standard deviation (around its own mean).
        held: share of the updates at which the threshold is met within the tolerance.
    """

    overshoot: float
    oscillation: float
    held: float


@dataclass(frozen=True)
class Statistic:
    """Mean and sample standard deviation (NaN where there is none) of the values of so many seeds."""

    mean: float
    std: float
    seeds: int


def statistic(values: Sequence[float | None]) -> Statistic | None:
    """Over the seeds that have a value; none if there are none."""
    known = [value for value in values if value is not None and not math.isnan(value)]
    if not known:
        return None
    return Statistic(float(np.mean(known)), float(np.std(known, ddof=1)) if len(known) > 1 else math.nan, len(known))


def last_part(updates: int, share: float, end: float) -> float:
    """Where the last share of a run's updates begins; the last logged step, `end`, is in it at least."""
    return min(updates * (1 - share), end)


def final_values(scalars: Mapping[str, Series], start: float) -> dict[str, float]:
    """Means over the updates from `start` on, by tag, of the tags that have values there."""
    last = {tag: series.between(start, np.inf) for tag, series in scalars.items()}
    return {tag: rounded(series.mean(), FLOAT_DIGITS) for tag, series in last.items() if len(series)}


def violation(rate: Rate, constraint: Constraint) -> Rate:
    """By how much a rate (or each of several), in the user's orientation, violates its bound; negative if it is met."""
    assert constraint.bound is not None
    return constraint.bound - rate if constraint.at_least is not None else rate - constraint.bound


def tolerance(constraint: Constraint) -> float:
    """The violation that still passes: a share of the rate of violations that is allowed."""
    return TOLERANCE * constraint.max_violation_rate


def window_of(updates: float) -> float:
    """Updates that the moving average is over."""
    return min(WINDOW, max(updates / 4, 1))


def compliance(rate: Series, constraint: Constraint) -> Series:
    """1 where a (moving average of a) rate meets its threshold within the tolerance, 0 where it doesn't."""
    met = violation(rate.values, constraint) <= tolerance(constraint) + ROUNDING
    return Series(rate.steps, met.astype(float))


def control(rate: Series, constraint: Constraint, updates: int) -> Control | None:
    """How a constraint was kept, from the moving average of its rate; none if there is nothing of the second half."""
    half = rate.between(updates / 2, np.inf)
    if not len(half):
        return None
    return Control(
        max(float(violation(half.values, constraint).max()), 0.0),
        float(half.values.std()),
        compliance(half, constraint).mean(),
    )


def kept_from(met: Series, start: float | None, updates: int) -> float | None:
    """The first update from which on a constraint is met at `KEPT` of all the updates that follow.

    Args:
        met: see `compliance`.
        start: not before this update; none if there is no such update.
        updates: how many were done: the last `REST` of them must follow, or the last of them alone would do.
    """
    if start is None or not len(met):
        return None
    counts = np.arange(len(met), 0, -1)
    shares = np.cumsum(met.values[::-1])[::-1] / counts
    able = (met.values > 0) & (shares >= KEPT - ROUNDING) & (met.steps >= start)
    found = met.steps[able & (met.steps <= updates * (1 - REST))]
    return float(found[0]) if len(found) else None


def together(met: Sequence[Series], reward: Series, level: float) -> float | None:
    """The first update at which the reward is at the level and all constraints are met at once."""
    steps = reward.steps[reward.values >= level]
    for each in met:
        steps = np.intersect1d(steps, each.steps[each.values > 0])
    return float(steps[0]) if len(steps) else None


def near_best(best: float) -> float:
    """The level of reward from which on it is near the best final one."""
    return best - NEAR_BEST * abs(best)


def time_to(series: Series, level: float) -> float | None:
    """The first step at which a series is at a level."""
    above = np.flatnonzero(series.values >= level)
    return float(series.steps[above[0]]) if len(above) else None


def spread(seeds: Sequence[Series]) -> float | None:
    """Standard deviation over seeds, averaged over the updates that at least two of them reach; none for one seed."""
    seeds = [series for series in seeds if len(series)]
    if len(seeds) < 2:
        return None
    _, values = on_common_steps(list(seeds))
    both = (~np.isnan(values)).sum(0) > 1
    return float(mean_and_std(values[:, both])[1].mean()) if both.any() else None
