"""Statistics over seeds, and whether they violate a threshold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lightning_cgrpo.objective.bound import Bound

TOLERANCE = 0.1
"""A rate passes if violations exceed the allowed rate by at most this share."""
MEAN_TOLERANCE = 0.02
"""A mean passes if it exceeds its bound by at most this share of the bound."""
ROUNDING = 1e-9


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
    std = float(np.std(known, ddof=1)) if len(known) > 1 else math.nan
    return Statistic(float(np.mean(known)), std, len(known))


def violates(value: Statistic | None, bound: Bound) -> bool:
    """True if a mean rate violates its threshold by more than the tolerance; False without rate or threshold."""
    if value is None or bound.threshold is None:
        return False
    tolerance = MEAN_TOLERANCE * abs(bound.target) if bound.of_mean else TOLERANCE * bound.target
    violation = bound.threshold - value.mean if bound.lower else value.mean - bound.threshold
    return violation > tolerance + ROUNDING
