"""Measures of runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from lightning_cgrpo.objective.bound import Bound
from lightning_cgrpo.reporting.runs import Run
from lightning_cgrpo.reporting.series import Array, moving_average

WINDOW = 200
"""Updates of the moving average; at most a quarter of a run."""
TOLERANCE = 0.1
"""A rate passes if violations exceed the allowed rate by at most this share."""
MEAN_TOLERANCE = 0.02
"""A mean passes if it exceeds its bound by at most this share of the bound."""
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


def held(run: Run, name: str, bound: Bound) -> float | None:
    """Share of the second half of training in which the moving average of a rate passes; None if not logged."""
    bins = run.series.get(bound.tag(name))
    if bins is None:
        return None
    average = moving_average(bins, run.width, min(WINDOW, max(run.updates / 4, 1)))
    # The last bin need not be full.
    late = average.values[np.minimum(average.steps, run.updates) >= run.updates / 2]
    return float((violation(late, bound) <= tolerance(bound) + ROUNDING).mean()) if len(late) else None
