"""Constraint: one behavior and its bound.

Functions import torch themselves, so that the command line checks a declaration without torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.objective.bound import Bound

if TYPE_CHECKING:
    from torch import Tensor

    from lightning_cgrpo.core.rollout import Signal

Role = Literal["constrain", "monitor"]


class ObjectiveError(UserError):
    """An invalid objective."""


POLICY_SIGNALS = ("kl", "entropy")
"""The policy's own signals, numbers measured in training where log-probabilities are known, see `own_signals`."""
BOUNDS = ("at_most", "at_least", "mean_at_most", "mean_at_least")
"""Kinds of bounds, of which a constraint has one."""


@dataclass(frozen=True)
class Constraint:
    """One behavior and the rate at which it may or must occur, or one signal and the bound of its mean.

    Args:
        at_most: highest rate, in [0, 1], of an unwanted behavior.
        at_least: lowest rate, in [0, 1], of a wanted behavior.
        mean_at_most: highest mean of a signal, in the signal's own unit.
        mean_at_least: lowest mean.
        range: least and greatest value of a mean's signal, which `certify` needs, and intervals stay within.
        aim: stricter than the bound: what training aims for, so that a test or a certificate meets the bound.
        role: ``constrain`` gives a multiplier; ``monitor`` only logs the rate.
        signal: the task's signal; by default the constraint's name.
        violated_above: larger values of a number are violations, whose rate `at_most` bounds. The limit is a number,
            or that of each prompt, in a column of the prompts: ``{column: NAME}``.
        violated_below: smaller values are violations.
        start: threshold before the first update, looser than the bound; with `over`.
        over: updates until the bound is in force, along a line from `start`.
        where: a column of the prompts and its value; only answers to these prompts count.
        given: another signal of the task, an indicator; only answers for which the signal is 1 count.
        by: a column and its values; each value has a multiplier of its own (see `expand_subsets`).
    """

    at_most: float | None = None
    at_least: float | None = None
    aim: float | None = None
    role: Role = "constrain"
    signal: str | None = None
    violated_above: float | dict[str, str] | None = None
    violated_below: float | dict[str, str] | None = None
    mean_at_most: float | None = None
    mean_at_least: float | None = None
    range: list[float] | tuple[float, float] | None = None
    start: float | None = None
    over: int | None = None
    where: dict[str, Any] | None = None
    given: str | None = None
    by: dict[str, list[Any]] | None = None

    @property
    def bound(self) -> Bound:
        """The declared bound; of a rate, without a threshold, if none is declared."""
        for key in BOUNDS:
            threshold = getattr(self, key)
            if threshold is None:
                continue
            kind: Literal["rate", "mean"] = "mean" if key.startswith("mean") else "rate"
            direction: Literal["at_most", "at_least"] = "at_least" if key.endswith("at_least") else "at_most"
            span = None if self.range is None else (self.range[0], self.range[1])
            return Bound(kind, direction, threshold, span)
        return Bound()

    def threshold(self, update: int) -> float:
        """The threshold in force, in the user's orientation."""
        end = self.bound.threshold
        assert end is not None
        if self.start is None or self.over is None or update >= self.over:
            return float(end)
        return self.start + (end - self.start) * update / self.over

    def violations(self, signal: Signal) -> tuple[Tensor, Tensor]:
        """Violations and opportunities, ``[B, G]``, or ``[B, G, T]`` of a signal by step.

        Of a mean, the oriented values and their number.
        """
        count, opportunities = self._as_indicator(signal).counts()
        count = as_number(count)
        opportunities = as_number(opportunities)
        if not self.bound.lower:
            return count, opportunities
        if self.bound.of_mean:
            return -count, opportunities
        return opportunities - count, opportunities

    def component(self, signal: Signal, rate: Tensor | None = None) -> Tensor:
        """Value for the advantage, larger is better: the signal, minus an unwanted signal, or minus the excess.

        The value is by step, ``[B, G, T]``, if the signal is.

        A signal that is a number gives -1 at violations, else 0; under a bound of its mean, the number itself.

        The excess is violations - threshold * opportunities, the Lagrangian of the ratio violations / opportunities. It
        is the cost where answers have different opportunities, because a sum over steps would prefer short answers,
        whatever their rate. A signal whose count is apart from its value has chosen its cost.

        With a condition (`given`), the excess is over the batch's own rate, in the place of the threshold. Its sum over
        the batch is 0, so the policy unlearns the condition on no account: the gradient is that of the rate among the
        answers that meet it. Over a far threshold, nearly every such answer would be worse than one that does not.

        Args:
            rate: of violation in the whole batch, for a constraint with a condition.
        """
        indicator = self._as_indicator(signal)
        has_opportunities = indicator.count is None and indicator.opportunities is not None
        if has_opportunities or self.given is not None:
            from lightning_cgrpo.objective.rounding import without_residue

            # Minus the excess of violations over those that the threshold, or the batch's own rate, allows.
            count, opportunities = self.violations(signal)
            allowed_rate = self.bound.target if rate is None else rate
            allowed = allowed_rate * opportunities
            return without_residue(allowed - count, allowed.abs() + count.abs())
        value = as_number(indicator.value)
        return value if self.bound.lower else -value

    @property
    def from_number(self) -> bool:
        return self.violated_above is not None or self.violated_below is not None

    @property
    def limit_column(self) -> str | None:
        """The column of the prompts with the limits of a number, which are subtracted from the signal."""
        limit = self.violated_below if self.violated_above is None else self.violated_above
        return limit["column"] if isinstance(limit, Mapping) else None

    @property
    def of_some(self) -> bool:
        """True if only some answers count, so that an update may have few of them."""
        return self.where is not None or self.given is not None

    def _as_indicator(self, signal: Signal) -> Signal:
        """The signal, 1 where a number is beyond its limit; any other signal stays."""
        if not self.from_number:
            return signal
        from lightning_cgrpo.core.rollout import Signal, over_steps

        value = signal.value  # [B, G] or [B, G, T]
        step_opportunities = None
        if value.dim() == 3:
            opportunities = signal.opportunities
            if opportunities is None and not signal.of_whole_answers:
                raise ObjectiveError(
                    "Expected a signal that is a number by step to have opportunities, but it has none, try "
                    "Signal(value, opportunities=...)."
                )
            if opportunities is not None and opportunities.dim() == 3:
                step_opportunities = opportunities
            else:
                # A number of whole answers, which a critic gets by step.
                value = over_steps(value)  # [B, G]
        if self.violated_above is not None:
            violated = value > _limit_value(self.violated_above)
        else:
            assert self.violated_below is not None
            violated = value < _limit_value(self.violated_below)
        if step_opportunities is not None:
            # Steps after an answer's end have no opportunities, and violate nothing.
            violated = violated & (step_opportunities > 0)
        return Signal(violated.to(value.dtype), opportunities=step_opportunities, applicable=signal.applicable)


def _limit_value(limit: float | Mapping[str, str]) -> float:
    """The value beyond which violations are; 0 where limits of a column are subtracted."""
    return 0.0 if isinstance(limit, Mapping) else limit


def as_number(tensor: Tensor) -> Tensor:
    """The tensor in floating point; indicators may be bool, counts integers."""
    import torch

    return tensor.to(torch.promote_types(tensor.dtype, torch.get_default_dtype()))
