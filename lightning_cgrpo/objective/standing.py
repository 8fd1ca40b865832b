"""Comparison of measured rates and means with thresholds: met, missed or undecided."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lightning_cgrpo.objective.bound import Bound
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


def standing(bound: Bound, rate: ClusteredRate) -> Standing:
    """The standing of a rate of violation; `says` is empty without a threshold."""
    return compared(bound, *bound.shown_interval(*rate.bounds((1 - CONFIDENCE) / 2)))


def compared(bound: Bound, low: float, high: float) -> Standing:
    """The standing of a shown rate's interval."""
    if bound.threshold is None:
        return Standing(low, high, "", bound.of_mean)
    met = [bound.met(end) for end in (low, high)]
    says: Literal["met", "missed", "undecided"] = "met" if all(met) else "undecided" if any(met) else "missed"
    return Standing(low, high, says, bound.of_mean)
