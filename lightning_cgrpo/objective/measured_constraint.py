"""MeasuredConstraint: what was measured of a constraint, and how every table shows it. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from lightning_cgrpo.objective.bound import Bound, Side
from lightning_cgrpo.objective.constraint import Constraint, Role

if TYPE_CHECKING:
    from lightning_cgrpo.objective.verdicts.clustered import ClusteredRate


@dataclass(frozen=True)
class MeasuredConstraint:
    """A constraint, and its rate or mean in the user's orientation.

    Args:
        bound: in force when it was measured.
        value: rate or mean; None if it was not measured, or never observed.
        interval: of 95 %; None if it is not known.
        side: of the bound on which the interval lies.
        given: the signal that is 1 for the answers that count.

    Example:
        >>> of = MeasuredConstraint("long", Bound("rate", "at_most", 0.05), given="correct", role="monitor")
        >>> of.label, of.at(0.0312).text, of.at(0.0312, (0.02, 0.04), "met").text
        ('long <= 0.05 given correct (monitored)', '0.031', '0.031 (0.020-0.040) met')
        >>> of.at(0.0312).compared, of.at(0.0512).compared
        ('0.031 <= 0.05 given correct', '0.051 > 0.05 given correct')
    """

    name: str
    bound: Bound
    value: float | None = None
    interval: tuple[float, float] | None = None
    side: Side = ""
    given: str | None = None
    role: Role = "constrain"

    @classmethod
    def declared(cls, name: str, constraint: Constraint) -> Self:
        """The constraint before any measurement."""
        return cls(name, constraint.bound, given=constraint.given, role=constraint.role)

    @classmethod
    def of(cls, name: str, constraint: Constraint, rate: ClusteredRate) -> Self:
        """The constraint with a measured rate of violation, its interval and side."""
        bound = constraint.bound
        declared = cls.declared(name, constraint)
        return declared.at(bound.shown(rate.rate), bound.interval(rate), bound.word(rate))

    def at(self, value: float | None, interval: tuple[float, float] | None = None, side: Side = "") -> Self:
        """The constraint with another measurement."""
        return replace(self, value=value, interval=interval, side=side)

    @property
    def enforced(self) -> bool:
        return self.role == "constrain"

    @property
    def met(self) -> bool:
        """True if the value keeps the bound."""
        return self.value is not None and self.bound.met(self.value)

    @property
    def condition(self) -> str:
        """The bound and what it is given: ``<= 0.05 given correct``."""
        given = "" if self.given is None else f"given {self.given}"
        return _join_words([str(self.bound), given])

    @property
    def label(self) -> str:
        """The name, the condition, and ``(monitored)``."""
        monitored = "" if self.enforced else "(monitored)"
        return _join_words([self.name, self.condition, monitored])

    @property
    def value_text(self) -> str:
        """The value with as many digits as its interval needs; ``-`` without."""
        return "-" if self.value is None else self.bound.number(self.value, self.interval)

    @property
    def interval_text(self) -> str:
        """``0.912-0.963``, empty without an interval."""
        return "" if self.interval is None else self.bound.interval_text(*self.interval)

    @property
    def text(self) -> str:
        """A cell: ``0.941 (0.912-0.963) met``."""
        interval = f"({self.interval_text})" if self.interval else ""
        return _join_words([self.value_text, interval, self.side])

    @property
    def compared(self) -> str:
        """``0.880 < 0.95 given correct``, with as many digits as tell the numbers apart; without a bound the value."""
        if self.value is None or self.bound.threshold is None:
            return _join_words([self.value_text, self.condition])
        shown = self.value_text
        looks_like_threshold = float(shown) == self.bound.threshold
        if looks_like_threshold and self.value != self.bound.threshold:
            shown = f"{self.value:.5g}"
        if self.met:
            return f"{shown} {self.condition}"
        # The condition without its sign, behind the opposite sign.
        sign = "<" if self.bound.lower else ">"
        _, _, threshold_and_given = self.condition.partition(" ")
        return f"{shown} {sign} {threshold_and_given}"


def _join_words(words: Sequence[str]) -> str:
    return " ".join(word for word in words if word)
