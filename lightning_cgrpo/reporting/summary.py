"""What a run comes to: final values, how well its constraints were kept, and how seeds differ."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lightning_cgrpo.constraint import Constraint
from lightning_cgrpo.reporting.series import Series, mean_and_std, moving_average, on_common_steps

WINDOW = 200
"""Updates of the moving average that constraints are judged by; a quarter of a run that is shorter than four times
that."""
TOLERANCE = 0.1
"""A rate is taken to meet its threshold if the rate of violation exceeds it by no more than this share of it."""
NEAR_BEST = 0.15
"""A reward this share below the best final one counts as reached."""


@dataclass(frozen=True)
class Control:
    """How a constraint was kept, by the moving average of its rate.

    Args:
        first_feasible: the first update from which the threshold is met; none if it never is.
        overshoot: the largest violation after that, 0 if there is none.
        oscillation: standard deviation over the second half of training.
        held: share of the second half in which the threshold is met within the tolerance.
    """

    first_feasible: float | None
    overshoot: float | None
    oscillation: float
    held: float


@dataclass(frozen=True)
class Statistic:
    """Mean and sample standard deviation over seeds (0 for a single one) of `seeds` values."""

    mean: float
    std: float
    seeds: int


def statistic(values: Sequence[float | None]) -> Statistic | None:
    """Over the seeds that have a value; none if there are none."""
    known = [value for value in values if value is not None and not math.isnan(value)]
    if not known:
        return None
    return Statistic(float(np.mean(known)), float(np.std(known, ddof=1)) if len(known) > 1 else 0.0, len(known))


def last_part(updates: int, share: float, end: float) -> float:
    """Where the last share of a run's updates begins; the last logged step, `end`, is in it at least."""
    return min(updates * (1 - share), end)


def final_values(scalars: Mapping[str, Series], start: float) -> dict[str, float]:
    """Means over the updates from `start` on, by tag, of the tags that have values there."""
    last = {tag: series.between(start, np.inf) for tag, series in scalars.items()}
    return {tag: series.mean() for tag, series in last.items() if len(series)}


def violation(rate: float, constraint: Constraint) -> float:
    """By how much a rate, in the user's orientation, violates its bound; negative if it is met."""
    assert constraint.bound is not None
    return constraint.bound - rate if constraint.at_least is not None else rate - constraint.bound


def tolerance(constraint: Constraint) -> float:
    """The violation that still passes: a share of the rate of violations that is allowed."""
    return TOLERANCE * constraint.max_violation_rate


def window_of(updates: float) -> float:
    """Updates that the moving average is over."""
    return min(WINDOW, max(updates / 4, 1))


def control(scalars: Mapping[str, Series], name: str, constraint: Constraint, updates: int) -> Control | None:
    """How constraint `name` was kept; none for one without a bound, without a rate, or that is only monitored."""
    rate = scalars.get(f"rate/{name}")
    if rate is None or not len(rate) or constraint.bound is None or constraint.role == "monitor":
        return None
    smooth = moving_average(rate, window_of(updates))
    if not len(smooth):
        return None
    sign = -1.0 if constraint.at_least is not None else 1.0
    violations = sign * (smooth.values - constraint.bound)
    feasible = np.flatnonzero(violations <= 0)
    half = violations[smooth.steps >= updates / 2]
    return Control(
        float(smooth.steps[feasible[0]]) if len(feasible) else None,
        max(float(violations[feasible[0] :].max()), 0.0) if len(feasible) else None,
        float(half.std()) if len(half) else math.nan,
        float((half <= tolerance(constraint)).mean()) if len(half) else math.nan,
    )


def near_best(best: float) -> float:
    """The level of reward from which on it is near the best final one."""
    return best - NEAR_BEST * abs(best)


def time_to(series: Series, level: float) -> float | None:
    """The first step at which a series is above a level."""
    above = np.flatnonzero(series.values > level)
    return float(series.steps[above[0]]) if len(above) else None


def spread(seeds: Sequence[Series]) -> float | None:
    """Standard deviation over seeds, averaged over the updates that at least two of them reach; none for one seed."""
    seeds = [series for series in seeds if len(series)]
    if len(seeds) < 2:
        return None
    _, values = on_common_steps(list(seeds))
    both = (~np.isnan(values)).sum(0) > 1
    return float(mean_and_std(values[:, both])[1].mean()) if both.any() else None
