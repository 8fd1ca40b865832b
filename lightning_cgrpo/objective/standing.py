"""Comparison of measured rates and means with thresholds: met, missed or undecided."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lightning_cgrpo.objective.constraint import Constraint
from lightning_cgrpo.verdicts.clustered import ClusteredRate

CONFIDENCE = 0.95
"""Confidence of two-sided intervals."""


@dataclass(frozen=True)
class Standing:
    """The interval of a shown rate or mean, and on which side of the threshold the interval lies."""

    low: float
    high: float
    says: Literal["met", "missed", "undecided", ""]
    of_mean: bool = False

    def __str__(self) -> str:
        if self.of_mean:
            return f"{self.low:.4g} to {self.high:.4g}"
        # A rate near 0 or 1 needs more digits.
        digits = 4 if min(self.high, 1 - self.low) < 0.01 else 3
        return f"{self.low:.{digits}f}-{self.high:.{digits}f}"


def standing(constraint: Constraint, rate: ClusteredRate) -> Standing:
    """The standing of a rate of violation; `says` is empty without a threshold."""
    return compared(constraint, *constraint.shown_bounds(*rate.bounds((1 - CONFIDENCE) / 2)))


def compared(constraint: Constraint, low: float, high: float) -> Standing:
    """The standing of a shown rate's interval."""
    if constraint.bound is None:
        return Standing(low, high, "", constraint.of_mean)
    met = [constraint.met_by(end) for end in (low, high)]
    says: Literal["met", "missed", "undecided"] = "met" if all(met) else "undecided" if any(met) else "missed"
    return Standing(low, high, says, constraint.of_mean)
