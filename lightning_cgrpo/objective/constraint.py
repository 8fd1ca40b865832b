"""Constraint: one behavior and its bound.

Functions import torch themselves, so that the command line checks a declaration without torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Literal, get_args

from lightning_cgrpo.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from lightning_cgrpo.rollout import Signal

Role = Literal["constrain", "monitor"]
Cost = Literal["signal", "excess"]

ROUNDING = 1e-6
"""Tolerance of rates at a bound, because Lightning keeps metrics in float32."""


class ObjectiveError(UserError):
    """An invalid objective."""


@dataclass(frozen=True)
class Constraint:
    """One behavior and the rate at which it may or must occur.

    Args:
        at_most: highest rate, in [0, 1], of an unwanted behavior.
        at_least: lowest rate, in [0, 1], of a wanted behavior.
        role: ``constrain`` gives a multiplier; ``monitor`` only logs the rate.
        signal: the task's signal; by default the constraint's name.
        violated_above: larger values of a number are violations; `at_least` then bounds the rate of the other values.
        violated_below: smaller values are violations.
        cost: value in the advantage. ``signal`` is the signal's own value; ``excess`` is violations - threshold *
            opportunities, the Lagrangian of the ratio violations / opportunities. They differ where answers have
            different opportunities: a sum over steps as the cost prefers short answers, whatever their rate.
    """

    at_most: float | None = None
    at_least: float | None = None
    role: Role = "constrain"
    signal: str | None = None
    violated_above: float | None = None
    violated_below: float | None = None
    cost: Cost = "signal"

    @property
    def bound(self) -> float | None:
        return self.at_most if self.at_least is None else self.at_least

    @property
    def max_violation_rate(self) -> float:
        """The threshold as a rate of violations: `at_most`, 1 - `at_least` in decimal (0.01 for 0.99), or infinity."""
        if self.at_least is not None:
            return float(1 - Decimal(str(self.at_least)))
        return math.inf if self.at_most is None else float(self.at_most)

    def shown_rate(self, violation_rate: float) -> float:
        return violation_rate if self.at_least is None else 1.0 - violation_rate

    def shown_bounds(self, lower: float, upper: float) -> tuple[float, float]:
        """Bounds of the shown rate, from bounds of the rate of violation."""
        return (lower, upper) if self.at_least is None else (1.0 - upper, 1.0 - lower)

    def met_by(self, shown_rate: float) -> bool:
        if self.at_least is not None:
            return shown_rate >= self.at_least - ROUNDING
        return self.at_most is None or shown_rate <= self.at_most + ROUNDING

    def check(self, name: str) -> None:
        where = f"constraint '{name}'"
        if self.role not in get_args(Role):
            raise ObjectiveError(f"Expected {where} to have role: constrain or monitor, but got '{self.role}'.")
        if self.cost not in get_args(Cost):
            raise ObjectiveError(f"Expected {where} to have cost: signal or excess, but got '{self.cost}'.")
        if self.at_most is not None and self.at_least is not None:
            raise ObjectiveError(
                f"Expected {where} to have one bound, but got both at_most: {self.at_most} and at_least: "
                f"{self.at_least}. Declare two constraints on the same `signal` to bound a rate from both sides."
            )
        if self.bound is None and self.role == "constrain":
            raise ObjectiveError(f"Expected {where} to have a bound, at_most: or at_least:, or role: monitor.")
        if self.bound is not None and not 0.0 <= self.bound <= 1.0:
            word = "at_most" if self.at_least is None else "at_least"
            hint = f" (did you mean {self.bound / 100:g}?)" if 1.0 < self.bound <= 100.0 else ""
            raise ObjectiveError(f"Expected {where} to have {word} in [0, 1], a rate, but got {self.bound}{hint}.")
        if self.role == "constrain" and (self.at_most == 1 or self.at_least == 0):
            given = "at_most: 1" if self.at_least is None else "at_least: 0"
            hint = "0.01 for 1 %" if self.at_least is None else "0.99"
            raise ObjectiveError(
                f"Expected {where} to have a bound that can be violated, but got {given}, a rate of "
                f"{'100' if self.at_least is None else '0'} %, try {hint}, or role: monitor."
            )
        if self.violated_above is not None and self.violated_below is not None:
            raise ObjectiveError(f"Expected {where} to have one of violated_above and violated_below, but got both.")
        for word, number in (("violated_above", self.violated_above), ("violated_below", self.violated_below)):
            if number is not None and not math.isfinite(number):
                raise ObjectiveError(f"Expected {where} to have a finite {word}, but got {number}.")

    def violations(self, signal: Signal) -> tuple[Tensor, Tensor]:
        """Violations and opportunities, ``[B, G]``, or ``[B, G, T]`` of a signal by step.

        Raises:
            ObjectiveError: the counts give no rate.
        """
        count, opportunities = self._indicator(signal).counts()
        wrong = (count < 0) | (count > opportunities)
        if signal.count is None and (signal.opportunities is None or signal.value.dim() == 3):
            wrong |= (count != 0) & (count != 1)
        if bool(wrong.any()):
            raise ObjectiveError(
                f"a rate is bounded, so its signal must be 0 or 1, but it was {float(count[wrong][0]):g}; add "
                "violated_above: or violated_below: to say which numbers violate it"
            )
        count, opportunities = as_number(count), as_number(opportunities)
        if self.at_least is not None and not self.from_number:
            count = opportunities - count
        return count, opportunities

    def component(self, signal: Signal) -> Tensor:
        """Value for the advantage, larger is better: the signal, or minus an unwanted signal or the excess.

        The value is by step, ``[B, G, T]``, if the signal is.

        A signal that is a number gives -1 at violations, else 0.
        """
        if self.cost == "excess":
            count, opportunities = self.violations(signal)
            return self.max_violation_rate * opportunities - count
        value = as_number(self._indicator(signal).value)
        return value if self.at_least is not None and not self.from_number else -value

    @property
    def from_number(self) -> bool:
        return self.violated_above is not None or self.violated_below is not None

    def _indicator(self, signal: Signal) -> Signal:
        if self.violated_above is not None:
            violated = signal.value > self.violated_above
        elif self.violated_below is not None:
            violated = signal.value < self.violated_below
        else:
            return signal
        from lightning_cgrpo.rollout import Signal

        every = None
        if signal.value.dim() == 3:
            every = signal.opportunities
            if every is None or every.dim() != 3:
                raise ObjectiveError("a number by step needs opportunities by step, and no counts of answers")
            violated = violated & (every > 0)  # not after an answer's end
        return Signal(violated.to(signal.value.dtype), opportunities=every, applicable=signal.applicable)


def as_number(tensor: Tensor) -> Tensor:
    """The tensor in floating point; indicators may be bool, counts integers."""
    import torch

    return tensor.to(torch.promote_types(tensor.dtype, torch.get_default_dtype()))
