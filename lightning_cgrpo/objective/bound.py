"""Bound: the allowed rate of a behavior, or mean of a signal."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from lightning_cgrpo.objective.verdicts.clustered import ClusteredRate

ROUNDING = 1e-6
"""Tolerance of a measurement at a threshold, because Lightning keeps metrics in float32."""
DIGITS = 1e-9
"""Tolerance of `rounded_up`, so that a rate of two digits stays."""
Side = Literal["met", "missed", "undecided", "too few", ""]


def rounded_up(rate: float) -> float:
    """A rate rounded up to two digits: a threshold slightly looser than the rate.

    Example:
        >>> rounded_up(0.391), rounded_up(0.0123)
        (0.4, 0.013)
    """
    if rate <= 0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(rate)) - 1)
    return min(round(math.ceil(rate / unit - DIGITS) * unit, 12), 1.0)


@dataclass(frozen=True)
class Bound:
    """The largest or least allowed rate or mean, in two orientations.

    Users declare and read a *threshold*: at least 0.99 of the answers are well-formed. Counts and multipliers are about
    violations, so the same bound is a *target* there: at most 0.01 of the answers are not. Of a mean, the violation is
    the mean itself, or minus the mean for a lower bound.

    Args:
        kind: of what is bounded, a rate in [0, 1] or a mean in its signal's unit.
        direction: side on which the threshold lies.
        threshold: in the user's orientation; None if the behavior is measured alone.
        range: least and greatest value of a mean's signal, beyond which no interval reaches.

    Example:
        >>> bound = Bound("rate", "at_least", 0.99)
        >>> bound.target, bound.shown(0.01), bound.met(0.985), bound.side(0.985, 0.995)
        (0.01, 0.99, False, 'undecided')
    """

    kind: Literal["rate", "mean"] = "rate"
    direction: Literal["at_most", "at_least"] = "at_most"
    threshold: float | None = None
    range: tuple[float, float] | None = None

    @property
    def key(self) -> str:
        """The key that declares the bound."""
        return f"mean_{self.direction}" if self.of_mean else self.direction

    @property
    def of_mean(self) -> bool:
        return self.kind == "mean"

    @property
    def lower(self) -> bool:
        """True if the threshold is the least allowed rate or mean."""
        return self.direction == "at_least"

    @property
    def sign(self) -> str:
        return ">=" if self.lower else "<="

    @property
    def target(self) -> float:
        """The largest allowed rate of violation; infinity without a threshold."""
        return math.inf if self.threshold is None else self.violation(self.threshold)

    def violation(self, shown: float) -> float:
        """The rate of violation behind a rate in the user's orientation, in decimal: 0.01 behind 0.99."""
        if not self.lower:
            return float(shown)
        if self.of_mean:
            return -float(shown)
        return float(1 - Decimal(str(shown)))

    def shown(self, violation: float) -> float:
        """A rate of violation in the user's orientation."""
        if not self.lower:
            return violation
        return (0.0 if self.of_mean else 1.0) - violation

    def shown_interval(self, least: float, largest: float) -> tuple[float, float]:
        """The interval in the user's orientation, from an interval of the rate of violation."""
        low, high = least, largest
        if self.lower:
            low, high = self.shown(largest), self.shown(least)
        if self.range is None:
            return low, high
        return max(low, self.range[0]), min(high, self.range[1])

    def declared_at(self, shown: float) -> str:
        """The declaration of a bound that a reached rate or mean keeps, rounded to the loose side.

        Example:
            >>> Bound("rate", "at_most", 0.05).declared_at(0.312), Bound("rate", "at_least", 0.99).declared_at(0.918)
            ('at_most: 0.32', 'at_least: 0.918')
            >>> Bound("mean", "at_most", 20.0).declared_at(128.4), Bound("mean", "at_least", 1.0).declared_at(0.7777)
            ('mean_at_most: 129', 'mean_at_least: 0.777')
        """
        if not self.of_mean:
            return f"{self.key}: {self.shown(rounded_up(self.violation(shown))):g}"
        # Three digits of the mean.
        step = 10.0 ** (math.floor(math.log10(abs(shown))) - 2) if shown else 1.0
        steps = math.floor(shown / step + DIGITS) if self.lower else math.ceil(shown / step - DIGITS)
        return f"{self.key}: {steps * step:.12g}"

    def met(self, shown: float) -> bool:
        """True if a rate or mean in the user's orientation keeps the threshold."""
        if self.threshold is None:
            return True
        rounding = ROUNDING * max(1.0, abs(self.threshold))
        if self.lower:
            return shown >= self.threshold - rounding
        return shown <= self.threshold + rounding

    def interval(self, rate: ClusteredRate) -> tuple[float, float]:
        """The 95 % interval of a measured rate of violation, in the user's orientation."""
        return self.shown_interval(*rate.bounds(0.025))

    def side(self, low: float, high: float) -> Side:
        """The side of the threshold on which an interval, in the user's orientation, lies; "" without a threshold."""
        if self.threshold is None:
            return ""
        low_met = self.met(low)
        high_met = self.met(high)
        if low_met and high_met:
            return "met"
        return "undecided" if low_met or high_met else "missed"

    def word(self, rate: ClusteredRate) -> Side:
        """The `side` of a measured rate of violation; "too few" if as many prompts could not meet it even when clean.

        Prompts that are too rare to be sampled may have the most opportunities.
        """
        side = self.side(*self.interval(rate))
        if side == "undecided" and rate.upper_if_clean(0.025) > self.target:
            return "too few"
        return side

    def number(self, value: float, interval: tuple[float, float] | None = None) -> str:
        """A rate or mean as text, with as many digits as its interval has.

        Example:
            >>> rate = Bound()
            >>> rate.number(0.9375), rate.number(0.0004), rate.number(0.002, (0.001, 0.005)), rate.number(0.0)
            ('0.938', '0.0004', '0.0020', '0.000')
        """
        if self.of_mean:
            return f"{value:.4g}"
        digits = _decimals(*interval) if interval else 3
        shown = f"{value:.{digits}f}"
        # A rate that is neither 0 nor 1 does not look as if it were.
        if float(shown) in (0, 1) and value not in (0, 1):
            return f"{value:.4f}"
        return shown

    def interval_text(self, low: float, high: float) -> str:
        """An interval in the user's orientation, as text: ``0.912-0.963``."""
        if self.of_mean:
            # Without any variation, the width of the interval is not known.
            return "all equal" if low == high else f"{low:.4g} to {high:.4g}"
        digits = _decimals(low, high)
        return f"{low:.{digits}f}-{high:.{digits}f}"

    def tag(self, name: str) -> str:
        """The tag of the measured rate or mean of constraint `name`."""
        return f"{self.kind}/{name}"

    def __str__(self) -> str:
        return "" if self.threshold is None else f"{self.sign} {self.threshold:g}"


def _decimals(low: float, high: float) -> int:
    """Decimals of a rate's interval: one near 0 or 1 needs more."""
    return 4 if min(high, 1 - low) < 0.01 else 3
