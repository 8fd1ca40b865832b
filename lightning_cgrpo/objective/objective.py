"""Objective: reward and constraints.

Functions import torch themselves, so that the command line checks a declaration without torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from lightning_cgrpo.objective.constraint import POLICY_SIGNALS, Constraint, ObjectiveError, as_number
from lightning_cgrpo.objective.declaration import check_constraint, is_number
from lightning_cgrpo.objective.look import Look
from lightning_cgrpo.objective.signals import SignalKind, check_condition, check_declared, check_indicators
from lightning_cgrpo.objective.subsets import expand_subsets, signal_key, with_subsets

if TYPE_CHECKING:
    from torch import Tensor

    from lightning_cgrpo.core.rollout import PromptGroups, Signal, Signals


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
        look: the first `certify` that training prepares for; by default none.

    Example:
        >>> objective = Objective("goal", {"lava": Constraint(at_most=0.01)})
        >>> objective.component_names
        ['reward', 'lava']
    """

    reward: str | dict[str, float]
    constraints: dict[str, Constraint] = field(default_factory=dict)
    # Not in the text by which checkpoints know an objective; see `Checkpoints`.
    look: Look | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.reward, (str, Mapping)):
            raise ObjectiveError(f"Expected reward to be a signal's name, or weights by name, but got {self.reward}.")
        if not isinstance(self.constraints, Mapping):
            raise ObjectiveError(
                "Expected constraints to be a mapping by name, like {lava: {at_most: 0.01}}, but got "
                f"{self.constraints}."
            )
        if isinstance(self.reward, Mapping) and (odd := [name for name in self.reward if not isinstance(name, str)]):
            raise ObjectiveError(
                f"Expected reward to name signals, but got {odd[0]!r}, try quotes around the name, because YAML reads "
                "off, on, no, yes and numbers as other values."
            )
        if not self.reward:
            raise ObjectiveError("Expected the objective to name a reward signal, but got none.")
        for name, weight in self.rewards.items():
            if not is_number(weight) or not math.isfinite(weight):
                raise ObjectiveError(f"Expected a finite weight for reward '{name}', but got {weight}.")
        for name, constraint in self.constraints.items():
            if not str(name).strip():
                raise ObjectiveError("Expected a constraint to have a name, but got a blank text.")
            if not isinstance(constraint, Constraint):
                raise ObjectiveError(
                    f"Expected constraint '{name}' to be a Constraint, but got a {type(constraint).__name__}, try "
                    "Constraint(at_most=0.01)."
                )
            check_constraint(name, constraint)
            if name.partition("/")[0] == "reward":
                raise ObjectiveError(f"Expected a constraint name that isn't the reward's in tags, but got '{name}'.")
        object.__setattr__(self, "constraints", expand_subsets(self.constraints))
        self._check_contradictions()
        self._check_look()

    def _check_look(self) -> None:
        if self.look is None:
            return
        if not isinstance(self.look, Look):
            raise ObjectiveError(f"Expected look to be a Look, but got a {type(self.look).__name__}, try Look(1_000).")
        if not self.decided:
            raise ObjectiveError("Expected constraints for a look: to certify, but the objective enforces none.")
        for name, constraint in self.decided.items():
            if constraint.bound.of_mean and constraint.range is None:
                raise ObjectiveError(
                    f"Expected a range for the look at the mean '{name}', without which `certify` can't bound it, but "
                    "got none, try range: [LEAST, GREATEST] in the constraint, or no look:."
                )
            rate = not constraint.bound.of_mean
            if rate and constraint.bound.target == 0:
                raise ObjectiveError(
                    f"Expected thresholds that a look can certify, but constraint '{name}' allows no violation, "
                    "try a threshold that allows some, or role: monitor."
                )
            if rate and not self.look.can_certify(constraint.bound.target, len(self.decided)):
                raise ObjectiveError(
                    f"Expected look: to have prompts that can certify '{name}' {constraint.bound}, but got "
                    f"{self.look.prompts}, too few even without a violation, try more prompts."
                )

    def _check_contradictions(self) -> None:
        bounds = [(name, signal_key(name, c), c.bound) for name, c in self.constrained.items() if not c.from_number]
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
        """The objective of a configuration.

        Raises:
            ObjectiveError: names, types, bounds or signals are not as `Constraint` declares them.
        """
        constraints = config.get("constraints") or {}
        if isinstance(constraints, Mapping):
            for name, values in constraints.items():
                if not isinstance(name, str):
                    raise ObjectiveError(
                        f"Expected the name of a constraint to be text, but got {name} ({type(name).__name__}), try "
                        "quotes."
                    )
                if not isinstance(values, Mapping):
                    raise ObjectiveError(
                        f"Expected constraint '{name}' to be like {{at_most: 0.01}}, but got {values}."
                    )
            constraints = {name: Constraint(**values) for name, values in constraints.items()}
        return cls(config.get("reward") or "", constraints, Look.declared(config.get("look")))

    @property
    def rewards(self) -> dict[str, float]:
        return {self.reward: 1.0} if isinstance(self.reward, str) else dict(self.reward)

    @property
    def constrained(self) -> dict[str, Constraint]:
        """The K constraints with a multiplier, in the multipliers' order."""
        return {name: c for name, c in self.constraints.items() if c.role == "constrain"}

    @property
    def decided(self) -> dict[str, Constraint]:
        """The enforced constraints that `certify` decides.

        The policy's own signals are left out where they have no range, because drift has no bound.
        """
        return {name: c for name, c in self.constrained.items() if name not in self.policy_signals or c.range}

    @property
    def bounded(self) -> dict[str, Constraint]:
        """Constraints with a threshold, monitored or not."""
        return {name: c for name, c in self.constraints.items() if c.bound.threshold is not None}

    @property
    def means(self) -> set[str]:
        """Names of the constraints that bound a mean."""
        return {name for name, c in self.constraints.items() if c.bound.of_mean}

    @property
    def policy_signals(self) -> dict[str, str]:
        """The policy's own signals that constraints bound, by constraint; they enter the loss, not the advantage."""
        signals = {name: c.signal or name for name, c in self.constraints.items()}
        return {name: signal for name, signal in signals.items() if signal in POLICY_SIGNALS}

    @property
    def drifts(self) -> set[str]:
        """Names of the constraints on ``kl``, the divergence from the reference, 0 at the start."""
        return {name for name, signal in self.policy_signals.items() if signal == "kl"}

    @property
    def compared(self) -> dict[str, Constraint]:
        """The enforced constraints on the task's signals, which enter the advantage."""
        return {name: c for name, c in self.constrained.items() if name not in self.policy_signals}

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
        """Names of the signals that the objective reads."""
        bounded = [constraint.signal or name for name, constraint in self.constraints.items()]
        given = [constraint.given for constraint in self.constraints.values() if constraint.given is not None]
        return list(dict.fromkeys([*self.rewards, *bounded, *given]))

    def check_signals(self, kinds: Mapping[str, SignalKind]) -> None:
        """Check the signals against a task's declaration.

        Raises:
            ObjectiveError: a signal is unknown, a number has no `violated_above` or `violated_below`, an indicator has
                one or is bounded by its mean, or a condition is no other indicator.
        """
        if taken := [signal for signal in POLICY_SIGNALS if signal in kinds and signal in self.policy_signals.values()]:
            raise ObjectiveError(
                f"Expected the task's signals to have other names than the policy's own, but got '{taken[0]}', try "
                "another name for the task's signal."
            )
        for name in self.rewards:
            check_declared(f"reward '{name}'", name, kinds)
        for name, constraint in self.constraints.items():
            signal, bound = constraint.signal or name, constraint.bound
            if name in self.policy_signals:
                if not bound.of_mean or constraint.of_some:
                    some = " and where:, by: or given:" if constraint.of_some else ""
                    raise ObjectiveError(
                        f"Expected constraint '{name}' to bound the mean of the policy's own '{signal}' on all "
                        f"answers, but got {bound.key}{some}, try mean_at_most: {bound.threshold or 0.1:g} alone."
                    )
                continue
            check_declared(f"constraint '{name}'", signal, kinds)
            check_condition(name, signal, constraint.given, kinds)
            if kinds[signal] == "indicator" and (bound.of_mean or constraint.from_number):
                wrong = f"{bound.key}, whose mean is a rate" if bound.of_mean else "violated_above: or violated_below:"
                raise ObjectiveError(
                    f"Expected constraint '{name}' to bound the rate of the indicator '{signal}' directly, but got "
                    f"{wrong}, try {bound.key.removeprefix('mean_')}: alone."
                )
            if kinds[signal] == "number" and not (bound.of_mean or constraint.from_number):
                raise ObjectiveError(
                    f"Expected constraint '{name}' to say when the number '{signal}' violates it, but got no limit, "
                    "try violated_above: or violated_below:."
                )

    def made(self, signals: Mapping[str, Signal], prompts: PromptGroups) -> dict[str, Signal]:
        """The task's signals, and those of the answers that count for a constraint.

        Raises:
            ObjectiveError: an indicator has another value than 0 and 1, or counts give no rate.
        """
        every = with_subsets(self.constraints, signals, prompts)
        users: dict[str, tuple[str, str]] = {}
        for name, constraint in self.constraints.items():
            if constraint.given is not None:
                users[constraint.given] = f"'{constraint.given}', given: to constraint '{name}',", "an indicator"
            if not (constraint.bound.of_mean or constraint.from_number):
                hint = "violated_above: or violated_below: with a limit"
                users[signal_key(name, constraint)] = f"the signal of constraint '{name}'", hint
        check_indicators(every, users)
        return every

    def components(self, signals: Signals) -> Components:
        """The components of an update's answers. Collective, if a constraint has a condition."""
        import torch

        from lightning_cgrpo.core.rollout import over_steps
        from lightning_cgrpo.objective.rounding import without_residue

        values = [signals[name].value for name in self.rewards]
        applicable = [signals[name].applicable for name in self.rewards]
        for name, constraint in self.compared.items():
            signal = signals[signal_key(name, constraint)]
            rate = None if constraint.given is None else _batch_rate(constraint, signal)
            values.append(constraint.component(signal, rate))
            # An answer outside the condition costs nothing, and is compared with the others: the policy decides whether
            # the condition holds, unlike which prompts are in a subset.
            applicable.append(signals[signal_key(name, replace(constraint, given=None))].applicable)
        values = [as_number(value) for value in values]
        # In float64, because rounding of long sums would tell equal answers apart.
        exact = [over_steps(value.double()).to(value.dtype) for value in values]
        sums = [without_residue(total, over_steps(value.abs())) for total, value in zip(exact, values, strict=True)]
        everywhere = torch.ones_like(sums[0], dtype=torch.bool)
        dtype = torch.float64 if any(value.dtype is torch.float64 for value in sums) else sums[0].dtype
        return Components(
            torch.stack([value.to(dtype) for value in sums]),
            torch.stack([everywhere if mask is None else mask for mask in applicable]),
            {row: value for row, value in enumerate(values) if value.dim() == 3},
        )

    def component_weights(self, weights: Tensor) -> Tensor:
        """Weights ``[J]`` of the components, from the weights ``[1 + K]`` of the reward and the constraints."""
        import torch

        rewards = torch.tensor(list(self.rewards.values()), dtype=weights.dtype, device=weights.device)
        costs = [weights[1 + k : 2 + k] for k, name in enumerate(self.constrained) if name not in self.policy_signals]
        return torch.cat([weights[:1] * rewards, *costs])

    def penalties(self, weights: Tensor) -> dict[str, Tensor]:
        """Coefficients of the policy's own signals in the loss, by signal.

        The coefficient of an enforced constraint is its weight of ``weights [1 + K]``, per nat.
        """
        penalties: dict[str, Tensor] = {}
        for k, (name, constraint) in enumerate(self.constrained.items()):
            if (signal := self.policy_signals.get(name)) is not None:
                cost = -weights[1 + k] if constraint.bound.lower else weights[1 + k]
                penalties[signal] = penalties[signal] + cost if signal in penalties else cost
        return penalties

    def counts(self, signals: Signals) -> dict[str, Tensor]:
        """Violations and opportunities of each constraint by prompt, float64 ``[2, B]``, monitored constraints too.

        The policy's own signals count 0 where they are unmeasured.
        """
        import torch

        value = next(iter(signals.values())).value
        unmeasured = torch.zeros(2, len(value), dtype=torch.float64, device=value.device)
        counts = dict.fromkeys(self.constraints, unmeasured)
        for name, constraint in self.constraints.items():
            if name not in self.policy_signals or self.policy_signals[name] in signals:
                pair = constraint.violations(signals[signal_key(name, constraint)])
                counts[name] = torch.stack([count.double().flatten(1).sum(-1) for count in pair])
        return counts

    def violations(self, signals: Signals) -> tuple[Tensor, Tensor]:
        """Violations and opportunities of all constraints, float64 ``[len(constraints)]`` each."""
        return over_prompts(self.counts(signals), self.constraints)


def _batch_rate(constraint: Constraint, signal: Signal) -> Tensor:
    """Rate of violation over the answers of all processes; the target without any opportunity. Collective."""
    import torch

    from lightning_cgrpo.core.distributed import all_sum

    counts = [count.double().sum() for count in constraint.violations(signal)]
    count, opportunities = all_sum(torch.stack(counts))
    rate = torch.where(opportunities > 0, count / opportunities, constraint.bound.target)
    return rate.to(as_number(signal.value).dtype)


def over_prompts(counts: Mapping[str, Tensor], names: Iterable[str]) -> tuple[Tensor, Tensor]:
    """Violations and opportunities of the named constraints, float64 ``[len(names)]`` each, from `Objective.counts`."""
    import torch

    rows = [counts[name] for name in names]
    if not rows:
        return torch.zeros(2, 0, dtype=torch.float64).unbind()  # type: ignore[return-value]
    violations, opportunities = torch.stack(rows).unbind(1)
    return violations.sum(-1), opportunities.sum(-1)
