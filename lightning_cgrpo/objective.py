"""The objective, declared once: what is the reward, which behaviors are constrained, and to which rates.

Torch is imported where tensors are made, so that the command line can check a declaration at once.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal, get_args

from lightning_cgrpo.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from lightning_cgrpo.rollout import Signal, Signals

SignalKind = Literal["indicator", "number", "any"]
Role = Literal["constrain", "monitor"]

ROUNDING = 1e-6
"""Rates this close to a bound meet it: Lightning keeps metrics in float32, where 0.1 is more than 0.1."""


class ObjectiveError(UserError):
    """The objective can't be what the user meant: the message says what to change."""


@dataclass(frozen=True)
class Constraint:
    """One behavior and the rate at which it may or must occur.

    Args:
        at_most: highest rate allowed, in [0, 1], of a behavior that is unwanted.
        at_least: lowest rate allowed, in [0, 1], of a behavior that is wanted.
        role: ``constrain`` gives the behavior a multiplier; ``monitor`` only measures and logs its rate.
        signal: the task's signal, if its name isn't the constraint's.
        violated_above: makes an indicator of a signal that is a number: values above this are violations, and
            `at_most` (`at_least`) bounds the rate of violation (of its absence).
        violated_below: likewise for values below.
    """

    at_most: float | None = None
    at_least: float | None = None
    role: Role = "constrain"
    signal: str | None = None
    violated_above: float | None = None
    violated_below: float | None = None

    @property
    def bound(self) -> float | None:
        """The threshold in the user's orientation."""
        return self.at_most if self.at_least is None else self.at_least

    @property
    def max_violation_rate(self) -> float:
        """The threshold as a rate of violations: `at_most`, or 1 - `at_least` in decimal (0.01 for 0.99)."""
        if self.at_least is not None:
            return float(1 - Decimal(str(self.at_least)))
        return math.inf if self.at_most is None else float(self.at_most)

    def shown_rate(self, violation_rate: float) -> float:
        """A rate of violations, in the user's orientation."""
        return violation_rate if self.at_least is None else 1.0 - violation_rate

    def met_by(self, shown_rate: float) -> bool:
        """Whether a rate in the user's orientation meets the bound; without a bound, any does."""
        if self.at_least is not None:
            return shown_rate >= self.at_least - ROUNDING
        return self.at_most is None or shown_rate <= self.at_most + ROUNDING

    def check(self, name: str) -> None:
        """Raises:
        ObjectiveError: naming the constraint and what to change.
        """
        where = f"constraint '{name}'"
        if self.role not in get_args(Role):
            raise ObjectiveError(f"Expected {where} to have role: constrain or monitor, but got '{self.role}'.")
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
        if self.violated_above is not None and self.violated_below is not None:
            raise ObjectiveError(f"Expected {where} to have one of violated_above and violated_below, but got both.")
        for word, number in (("violated_above", self.violated_above), ("violated_below", self.violated_below)):
            if number is not None and not math.isfinite(number):
                raise ObjectiveError(f"Expected {where} to have a finite {word}, but got {number}.")

    def violations(self, signal: Signal) -> tuple[Tensor, Tensor]:
        """Violations and opportunities ``[B, G]``, for the rate.

        Raises:
            ObjectiveError: if the signal is a number.
        """
        count, opportunities = self._indicator(signal).counts()
        wrong = (count < 0) | (count > opportunities)
        if signal.count is None and signal.opportunities is None:
            wrong |= (count != 0) & (count != 1)
        if bool(wrong.any()):
            raise ObjectiveError(
                f"a rate is bounded, so its signal must be 0 or 1, but it was {float(count[wrong][0]):g}; add "
                "violated_above: or violated_below: to say which numbers violate it"
            )
        count, opportunities = _number(count), _number(opportunities)
        if self.at_least is not None and not self._from_number:
            count = opportunities - count
        return count, opportunities

    def component(self, signal: Signal) -> Tensor:
        """The value for the advantage, larger is better: the signal, or minus the signal where it is unwanted.

        (A cost 1 - value differs from -value by a constant, which no group advantage sees.)
        """
        value = _number(self._indicator(signal).value)
        return value if self.at_least is not None and not self._from_number else -value

    @property
    def _from_number(self) -> bool:
        return self.violated_above is not None or self.violated_below is not None

    def _indicator(self, signal: Signal) -> Signal:
        if self.violated_above is not None:
            violated = signal.value > self.violated_above
        elif self.violated_below is not None:
            violated = signal.value < self.violated_below
        else:
            return signal
        from lightning_cgrpo.rollout import Signal

        return Signal(violated.to(signal.value.dtype), applicable=signal.applicable)


@dataclass(frozen=True)
class Components:
    """What advantages are made of, larger being better everywhere.

    Args:
        values: ``[J, B, G]`` (or ``[J, B, G, T]``): rewards, then minus the costs of the constraints.
        applicable: ``[J, B, G]`` bool.
    """

    values: Tensor
    applicable: Tensor


@dataclass(frozen=True)
class Objective:
    """Maximize the reward subject to behavior rates.

    Args:
        reward: a signal's name, or several with their weights, ``{speed: 1.0, comfort: 0.2}``. Each is a component of
            its own: scalarized advantages standardize it by itself.
        constraints: by name. The name appears in every tag and table.

    Raises:
        ObjectiveError: if a bound is missing, doubled or not a rate, or there is no reward.

    Example:
        >>> objective = Objective("goal", {"lava": Constraint(at_most=0.01)})
        >>> objective.component_names
        ['reward', 'lava']
    """

    reward: str | dict[str, float]
    constraints: dict[str, Constraint] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.reward:
            raise ObjectiveError("Expected the objective to name a reward signal, but got none.")
        for name, weight in self.rewards.items():
            if not math.isfinite(weight):
                raise ObjectiveError(f"Expected a finite weight for reward '{name}', but got {weight}.")
        for name, constraint in self.constraints.items():
            constraint.check(name)
            if name.partition("/")[0] == "reward":
                raise ObjectiveError(f"Expected a constraint name that isn't the reward's in tags, but got '{name}'.")

    @classmethod
    def declared(cls, config: Mapping[str, Any]) -> Objective:
        """From a configuration's plain containers, whose keys have been checked.

        Raises:
            ObjectiveError: as the constructor does, or naming the key of a value that isn't a number.
        """
        constraints = {}
        for name, values in (config.get("constraints") or {}).items():
            if not isinstance(values, Mapping):
                raise ObjectiveError(f"Expected constraint '{name}' to be like {{at_most: 0.01}}, but got {values}.")
            for key in ("at_most", "at_least", "violated_above", "violated_below"):
                value = values.get(key)
                if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
                    raise ObjectiveError(f"Expected {key} of constraint '{name}' to be a number, but got '{value}'.")
            constraints[name] = Constraint(**values)
        return cls(config.get("reward") or "", constraints)

    @property
    def rewards(self) -> dict[str, float]:
        """Reward signals and their weights within the reward."""
        return {self.reward: 1.0} if isinstance(self.reward, str) else dict(self.reward)

    @property
    def constrained(self) -> dict[str, Constraint]:
        """The K constraints that have a multiplier, in the order of the multipliers."""
        return {name: c for name, c in self.constraints.items() if c.role == "constrain"}

    @property
    def weight_names(self) -> list[str]:
        """The 1 + K weights: ``reward``, then the constraints."""
        return ["reward", *self.constrained]

    @property
    def component_names(self) -> list[str]:
        """The J components: ``reward`` (or ``reward/<signal>`` where there are several), then the constraints."""
        rewards = ["reward"] if len(self.rewards) == 1 else [f"reward/{name}" for name in self.rewards]
        return [*rewards, *self.constrained]

    @property
    def signal_names(self) -> list[str]:
        """Every signal that the objective refers to, once."""
        return list(dict.fromkeys([*self.rewards, *(c.signal or name for name, c in self.constraints.items())]))

    def check_signals(self, declared: Mapping[str, SignalKind]) -> None:
        """Compare with what the task measures.

        Args:
            declared: the task's signals and whether each is an indicator or a number.

        Raises:
            ObjectiveError: if a signal is unknown (with a suggestion), or a constraint is on a number without saying
                which numbers violate it.
        """
        for name in self.rewards:
            _check_known(f"reward '{name}'", name, declared)
        for name, constraint in self.constraints.items():
            signal = constraint.signal or name
            _check_known(f"constraint '{name}'", signal, declared)
            if declared[signal] == "number" and not constraint._from_number:
                raise ObjectiveError(
                    f"Expected constraint '{name}' to say when the number '{signal}' violates it: "
                    "add violated_above: or violated_below:."
                )
            if declared[signal] == "indicator" and constraint._from_number:
                raise ObjectiveError(
                    f"Expected constraint '{name}' on the indicator '{signal}' to have no violated_above: or "
                    "violated_below:, since its rate is bounded directly."
                )

    def components(self, signals: Signals) -> Components:
        """Rewards and constraints as one stack ``[J, B, G]``."""
        import torch

        values, applicable = [], []
        for name in self.rewards:
            values.append(signals[name].value)
            applicable.append(signals[name].applicable)
        for name, constraint in self.constrained.items():
            signal = signals[constraint.signal or name]
            values.append(constraint.component(signal))
            applicable.append(signal.applicable)
        everywhere = torch.ones_like(values[0], dtype=torch.bool)
        values = [_number(value) for value in values]
        return Components(
            torch.stack([value.to(values[0].dtype) for value in values]),
            torch.stack([everywhere if mask is None else mask for mask in applicable]),
        )

    def component_weights(self, weights: Tensor) -> Tensor:
        """Weights ``[1 + K]`` of the reward and the constraints, spread over the components ``[J]``."""
        import torch

        rewards = torch.tensor(list(self.rewards.values()), dtype=weights.dtype, device=weights.device)
        return torch.cat([weights[:1] * rewards, weights[1:]])

    def violations(self, signals: Signals, names: Iterable[str] | None = None) -> tuple[Tensor, Tensor]:
        """Violations and opportunities summed over the batch, float64 ``[len(names)]`` each.

        Args:
            names: constraints, monitored ones included; all by default.

        Raises:
            ObjectiveError: if a signal without a declared kind turns out to be a number.
        """
        import torch

        counts = []
        for name in self.constraints if names is None else names:
            constraint = self.constraints[name]
            try:
                pair = constraint.violations(signals[constraint.signal or name])
            except ObjectiveError as error:
                raise ObjectiveError(f"Constraint '{name}' can't be measured: {error}.") from None
            counts.append(torch.stack([count.double().sum() for count in pair]))
        if not counts:
            empty = torch.zeros(0, dtype=torch.float64)
            return empty, empty.clone()
        violations, opportunities = torch.stack(counts).unbind(1)
        return violations, opportunities


def _number(tensor: Tensor) -> Tensor:
    """In floating point: indicators may be bool, counts integers."""
    import torch

    return tensor.to(torch.promote_types(tensor.dtype, torch.get_default_dtype()))


def _check_known(what: str, signal: str, declared: Iterable[str]) -> None:
    if signal not in declared:
        close = difflib.get_close_matches(signal, list(declared), n=1)
        hint = f" Did you mean '{close[0]}'?" if close else ""
        raise ObjectiveError(
            f"Expected {what} to name a signal of the task, {sorted(declared)}, but got '{signal}'.{hint}"
        )
