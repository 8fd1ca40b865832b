"""Objective: reward and constraints.

Functions import torch themselves, so that the command line checks a declaration without torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lightning_cgrpo.objective.composition import (
    DRIFTS,
    OWN,
    SignalKind,
    check_compositions,
    check_known,
    checked_kinds,
    composed,
    ordered,
)
from lightning_cgrpo.objective.constraint import Constraint, ObjectiveError, as_number
from lightning_cgrpo.objective.declaration import check_constraint, check_numbers
from lightning_cgrpo.objective.subsets import expanded, key, with_subsets

if TYPE_CHECKING:
    from torch import Tensor

    from lightning_cgrpo.rollout import PromptGroups, Signal, Signals


@dataclass(frozen=True)
class Components:
    """Components of advantages; larger is better.

    Args:
        values: ``[J, B, G]``: rewards, then constraints (`Constraint.component`). A signal by step is summed over the
            steps, so estimators that compare answers in a group standardize the sum.
        applicable: ``[J, B, G]`` bool.
        steps: values ``[B, G, T]`` of the components whose signal is by step, by component.
    """

    values: Tensor
    applicable: Tensor
    steps: Mapping[int, Tensor] = field(default_factory=dict)

    def by_step(self, mask: Tensor) -> Tensor:
        """Values ``[J, B, G, T]``, 0 where inapplicable; the value of a whole answer stands at its last step.

        Args:
            mask: steps of the answers, ``[B, G, T]``.
        """
        import torch

        last = mask & (mask.cumsum(-1) == mask.sum(-1, keepdim=True))
        rows = [self.steps.get(row, value[..., None] * last) for row, value in enumerate(self.values)]
        return torch.where(self.applicable[..., None], torch.stack(rows).to(self.values.dtype), 0)


@dataclass(frozen=True)
class Objective:
    """Maximize the reward subject to bounds of behavior rates and means.

    Args:
        reward: a signal, or a component per weighted signal, ``{speed: 1.0, comfort: 0.2}``.
        constraints: by name, as in tags and tables.
        signals: signals made of the task's signals, by name, see `composition`.

    Example:
        >>> objective = Objective("goal", {"lava": Constraint(at_most=0.01)})
        >>> objective.component_names
        ['reward', 'lava']
    """

    reward: str | dict[str, float]
    constraints: dict[str, Constraint] = field(default_factory=dict)
    signals: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.reward:
            raise ObjectiveError("Expected the objective to name a reward signal, but got none.")
        for name, weight in self.rewards.items():
            if not isinstance(weight, (int, float)) or not math.isfinite(weight):
                raise ObjectiveError(f"Expected a finite weight for reward '{name}', but got {weight}.")
        for name, constraint in self.constraints.items():
            if not isinstance(constraint, Constraint):
                raise ObjectiveError(
                    f"Expected constraint '{name}' to be a Constraint, but got a {type(constraint).__name__}, try "
                    "Constraint(at_most=0.01)."
                )
            check_constraint(name, constraint)
            if name.partition("/")[0] == "reward":
                raise ObjectiveError(f"Expected a constraint name that isn't the reward's in tags, but got '{name}'.")
        object.__setattr__(self, "constraints", expanded(self.constraints))
        check_compositions(self.signals)
        self._check_contradictions()

    def _check_contradictions(self) -> None:
        bounds = [(name, key(name, c), c.bound) for name, c in self.constrained.items() if not c.from_number]
        for name, signal, least in bounds:
            for other, also, most in bounds:
                opposite = signal == also and least.kind == most.kind and least.lower and not most.lower
                if opposite and (least.threshold or 0) > (most.threshold or 0):
                    raise ObjectiveError(
                        f"Expected constraints '{name}' and '{other}' on '{self.constraints[name].signal or name}' to "
                        f"allow some {least.kind}, but got {least.key}: {least.threshold:g} and {most.key}: "
                        f"{most.threshold:g}."
                    )

    @classmethod
    def declared(cls, config: Mapping[str, Any]) -> Objective:
        constraints = {}
        declared, reward = config.get("constraints") or {}, config.get("reward") or ""
        if not isinstance(declared, Mapping):
            raise ObjectiveError(
                f"Expected constraints to be a mapping by name, like {{lava: {{at_most: 0.01}}}}, but got {declared}."
            )
        if not isinstance(reward, (str, Mapping)):
            raise ObjectiveError(f"Expected reward to be a signal's name, or weights by name, but got {reward}.")
        for name, values in declared.items():
            if not isinstance(name, str):
                raise ObjectiveError(
                    f"Expected the name of a constraint to be text, but got {name} ({type(name).__name__}), try quotes."
                )
            if not isinstance(values, Mapping):
                raise ObjectiveError(f"Expected constraint '{name}' to be like {{at_most: 0.01}}, but got {values}.")
            check_numbers(name, values)
            constraints[name] = Constraint(**values)
        signals = config.get("signals") or {}
        if not isinstance(signals, Mapping):
            raise ObjectiveError(
                "Expected signals to be a mapping by name, like {brief: {below: {tokens: 80}}}, but got "
                f"{signals}."
            )
        return cls(reward if isinstance(reward, str) else dict(reward), constraints, dict(signals))

    @property
    def rewards(self) -> dict[str, float]:
        return {self.reward: 1.0} if isinstance(self.reward, str) else dict(self.reward)

    @property
    def constrained(self) -> dict[str, Constraint]:
        """The K constraints with a multiplier, in the multipliers' order."""
        return {name: c for name, c in self.constraints.items() if c.role == "constrain"}

    @property
    def bounded(self) -> dict[str, Constraint]:
        """Constraints with a threshold, monitored or not."""
        return {name: c for name, c in self.constraints.items() if c.bound.threshold is not None}

    @property
    def means(self) -> set[str]:
        """Names of the constraints that bound a mean."""
        return {name for name, c in self.constraints.items() if c.bound.of_mean}

    @property
    def own(self) -> dict[str, Constraint]:
        """Constraints on the policy's own signals, which enter the loss instead of the advantage."""
        return {name: c for name, c in self.constraints.items() if (c.signal or name) in OWN}

    @property
    def drifts(self) -> dict[str, Constraint]:
        """Constraints on divergences between policies, 0 at the start."""
        return {name: c for name, c in self.constraints.items() if (c.signal or name) in DRIFTS}

    @property
    def compared(self) -> dict[str, Constraint]:
        """The enforced constraints on the task's signals, which enter the advantage."""
        return {name: c for name, c in self.constrained.items() if name not in self.own}

    @property
    def weight_names(self) -> list[str]:
        """Names of the 1 + K weights: ``reward``, then the constraints."""
        return ["reward", *self.constrained]

    @property
    def component_names(self) -> list[str]:
        """Names of the J components: ``reward`` (or ``reward/<signal>`` of several), then the constraints."""
        rewards = ["reward"] if len(self.rewards) == 1 else [f"reward/{name}" for name in self.rewards]
        return [*rewards, *self.compared]

    @property
    def signal_names(self) -> list[str]:
        return list(dict.fromkeys([*self.rewards, *(c.signal or name for name, c in self.constraints.items())]))

    def check_signals(self, declared: Mapping[str, SignalKind]) -> None:
        """Check the signals against a task's declaration.

        Raises:
            ObjectiveError: a signal is unknown, a number has no `violated_above` or `violated_below`, an indicator
                has one or is bounded by its mean, or a composition does not fit its parts.
        """
        declared = checked_kinds(self.signals, declared)
        for name in self.rewards:
            check_known(f"reward '{name}'", name, declared)
        for name, constraint in self.constraints.items():
            signal = constraint.signal or name
            if name in self.own:
                if not constraint.bound.of_mean:
                    raise ObjectiveError(
                        f"Expected constraint '{name}' to bound the mean of '{signal}', a number of the policy's own, "
                        f"try mean_at_most: {constraint.bound.threshold or 0.1:g}."
                    )
                if constraint.where is not None:
                    raise ObjectiveError(
                        f"Expected constraint '{name}' on the policy's own '{signal}' to be on all prompts, try it "
                        "without where: and by:."
                    )
                if signal in declared:
                    raise ObjectiveError(
                        f"Expected the task's signals to have other names than the policy's own, but got '{signal}', "
                        "try another name for the task's signal."
                    )
                continue
            check_known(f"constraint '{name}'", signal, declared)
            if constraint.bound.of_mean:
                if declared[signal] == "indicator":
                    raise ObjectiveError(
                        f"Expected constraint '{name}' to bound the mean of a number, but '{signal}' is an indicator, "
                        f"whose mean is a rate, try {constraint.bound.key.removeprefix('mean_')}:."
                    )
                continue
            if declared[signal] == "number" and not constraint.from_number:
                raise ObjectiveError(
                    f"Expected constraint '{name}' to say when the number '{signal}' violates it: "
                    "add violated_above: or violated_below:."
                )
            if declared[signal] == "indicator" and constraint.from_number:
                raise ObjectiveError(
                    f"Expected constraint '{name}' on the indicator '{signal}' to have no violated_above: or "
                    "violated_below:, since its rate is bounded directly."
                )

    def made(self, signals: Mapping[str, Signal], prompts: PromptGroups) -> dict[str, Signal]:
        """The task's signals, the declared compositions, and the signals of subsets."""
        return with_subsets(self.constraints, self.with_compositions(signals), prompts)

    def with_compositions(self, signals: Mapping[str, Signal]) -> dict[str, Signal]:
        """The task's signals, and the declared compositions."""
        found = dict(signals)
        for name in ordered(self.signals):
            found[name] = composed(self.signals[name], found)
        return found

    def components(self, signals: Signals) -> Components:
        import torch

        from lightning_cgrpo.rollout import over_steps

        values = [signals[name].value for name in self.rewards]
        applicable = [signals[name].applicable for name in self.rewards]
        for name, constraint in self.compared.items():
            signal = signals[key(name, constraint)]
            values.append(constraint.component(signal))
            applicable.append(signal.applicable)
        values = [as_number(value) for value in values]
        sums = [over_steps(value) for value in values]
        everywhere = torch.ones_like(sums[0], dtype=torch.bool)
        return Components(
            torch.stack([value.to(sums[0].dtype) for value in sums]),
            torch.stack([everywhere if mask is None else mask for mask in applicable]),
            {row: value for row, value in enumerate(values) if value.dim() == 3},
        )

    def component_weights(self, weights: Tensor) -> Tensor:
        import torch

        rewards = torch.tensor(list(self.rewards.values()), dtype=weights.dtype, device=weights.device)
        costs = [weights[1 + k : 2 + k] for k, name in enumerate(self.constrained) if name not in self.own]
        return torch.cat([weights[:1] * rewards, *costs])

    def penalties(self, weights: Tensor) -> dict[str, Tensor]:
        """Coefficients of the policy's own signals in the loss, by signal.

        The coefficient of an enforced constraint is its weight of ``weights [1 + K]``, per nat.
        """
        found: dict[str, Tensor] = {}
        for k, (name, constraint) in enumerate(self.constrained.items()):
            if name in self.own:
                signal, cost = constraint.signal or name, weights[1 + k]
                cost = -cost if constraint.bound.lower else cost
                found[signal] = found[signal] + cost if signal in found else cost
        return found

    def violations(self, signals: Signals, names: Iterable[str] | None = None) -> tuple[Tensor, Tensor]:
        """Violations and opportunities of constraints, by default all, monitored too; float64 ``[len(names)]`` each."""
        violations, opportunities = self.violations_by_prompt(signals, names)
        return violations.sum(-1), opportunities.sum(-1)

    def violations_by_prompt(self, signals: Signals, names: Iterable[str] | None = None) -> tuple[Tensor, Tensor]:
        """`violations` by prompt, ``[len(names), B]`` each."""
        import torch

        counts = []
        for name in self.constraints if names is None else names:
            constraint = self.constraints[name]
            if name in self.own and (constraint.signal or name) not in signals:
                value = next(iter(signals.values())).value
                counts.append(torch.zeros(2, len(value), dtype=torch.float64, device=value.device))
                continue
            try:
                pair = constraint.violations(signals[key(name, constraint)])
            except ObjectiveError as error:
                raise ObjectiveError(f"Constraint '{name}' can't be measured: {error}.") from None
            counts.append(torch.stack([count.double().flatten(1).sum(-1) for count in pair]))
        if not counts:
            empty = torch.zeros(0, 0, dtype=torch.float64)
            return empty, empty.clone()
        violations, opportunities = torch.stack(counts).unbind(1)
        return violations, opportunities
