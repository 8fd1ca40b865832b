"""Objective: reward and constraints.

Functions import torch themselves, so that the command line checks a declaration without torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from lightning_cgrpo.objective.bound import Bound
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

        last_step = mask & (mask.cumsum(-1) == mask.sum(-1, keepdim=True))
        step_values = []  # [B, G, T] each
        for component, value in enumerate(self.values):
            step_values.append(self.steps.get(component, value[..., None] * last_step))
        return torch.where(self.applicable[..., None], torch.stack(step_values).to(self.values.dtype), 0)


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
        if isinstance(self.reward, Mapping):
            for name in self.reward:
                if not isinstance(name, str):
                    raise ObjectiveError(
                        f"Expected reward to name signals, but got {name!r}, try quotes around the name, because YAML "
                        "reads off, on, no, yes and numbers as other values."
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
        """Refuse a look that could not certify an enforced constraint."""
        if self.look is None:
            return
        if not isinstance(self.look, Look):
            raise ObjectiveError(f"Expected look to be a Look, but got a {type(self.look).__name__}, try Look(1_000).")
        if not self.decided:
            raise ObjectiveError("Expected constraints for a look: to certify, but the objective enforces none.")
        for name, constraint in self.decided.items():
            if constraint.bound.of_mean:
                if constraint.range is None:
                    raise ObjectiveError(
                        f"Expected a range for the look at the mean '{name}', without which `certify` can't bound it, "
                        "but got none, try range: [LEAST, GREATEST] in the constraint, or no look:."
                    )
                continue
            if constraint.bound.target == 0:
                raise ObjectiveError(
                    f"Expected thresholds that a look can certify, but constraint '{name}' allows no violation, "
                    "try a threshold that allows some, or role: monitor."
                )
            if not self.look.can_certify(constraint.bound.target, len(self.decided)):
                raise ObjectiveError(
                    f"Expected look: to have prompts that can certify '{name}' {constraint.bound}, but got "
                    f"{self.look.prompts}, too few even without a violation, try more prompts."
                )

    def _check_contradictions(self) -> None:
        """Refuse a lower bound above an upper bound of the same signal."""
        upper_bounds: dict[tuple[str, str], list[tuple[str, Bound]]] = {}  # by signal and kind
        for name, constraint in self.constrained.items():
            bound = constraint.bound
            if not bound.lower and not constraint.from_number:
                upper_bounds.setdefault((signal_key(name, constraint), bound.kind), []).append((name, bound))
        for name, constraint in self.constrained.items():
            least = constraint.bound
            if not least.lower or constraint.from_number:
                continue
            for other_name, most in upper_bounds.get((signal_key(name, constraint), least.kind), ()):
                if (least.threshold or 0) > (most.threshold or 0):
                    raise ObjectiveError(
                        f"Expected constraints '{name}' and '{other_name}' on '{constraint.signal or name}' to "
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
        """Weights of the reward signals, by name."""
        if isinstance(self.reward, str):
            return {self.reward: 1.0}
        return dict(self.reward)

    @property
    def constrained(self) -> dict[str, Constraint]:
        """The K constraints with a multiplier, in the multipliers' order."""
        constraints = self.constraints.items()
        return {name: constraint for name, constraint in constraints if constraint.role == "constrain"}

    @property
    def decided(self) -> dict[str, Constraint]:
        """The enforced constraints that `certify` decides.

        The policy's own signals are left out where they have no range, because drift has no bound.
        """
        policy_signals = self.policy_signals
        decided: dict[str, Constraint] = {}
        for name, constraint in self.constrained.items():
            if name not in policy_signals or constraint.range:
                decided[name] = constraint
        return decided

    @property
    def bounded(self) -> dict[str, Constraint]:
        """Constraints with a threshold, monitored or not."""
        constraints = self.constraints.items()
        return {name: constraint for name, constraint in constraints if constraint.bound.threshold is not None}

    @property
    def means(self) -> set[str]:
        """Names of the constraints that bound a mean."""
        return {name for name, constraint in self.constraints.items() if constraint.bound.of_mean}

    @property
    def policy_signals(self) -> dict[str, str]:
        """The policy's own signals that constraints bound, by constraint; they enter the loss, not the advantage."""
        signals = {name: constraint.signal or name for name, constraint in self.constraints.items()}
        return {name: signal for name, signal in signals.items() if signal in POLICY_SIGNALS}

    @property
    def drifts(self) -> set[str]:
        """Names of the constraints on ``kl``, the divergence from the reference, 0 at the start."""
        return {name for name, signal in self.policy_signals.items() if signal == "kl"}

    @property
    def compared(self) -> dict[str, Constraint]:
        """The enforced constraints on the task's signals, which enter the advantage."""
        policy_signals = self.policy_signals
        return {name: constraint for name, constraint in self.constrained.items() if name not in policy_signals}

    @property
    def weight_names(self) -> list[str]:
        """Names of the 1 + K weights: ``reward``, then the constraints."""
        return ["reward", *self.constrained]

    @property
    def component_names(self) -> list[str]:
        """Names of the J components: ``reward`` (or ``reward/<signal>`` of several), then the constraints."""
        rewards = ["reward"]
        if len(self.rewards) > 1:
            rewards = [f"reward/{name}" for name in self.rewards]
        return [*rewards, *self.compared]

    @property
    def signal_names(self) -> list[str]:
        """Names of the signals that the objective reads."""
        bounded = [constraint.signal or name for name, constraint in self.constraints.items()]
        conditions = [constraint.given for constraint in self.constraints.values() if constraint.given is not None]
        return list(dict.fromkeys([*self.rewards, *bounded, *conditions]))

    def check_signals(self, kinds: Mapping[str, SignalKind]) -> None:
        """Check the signals against a task's declaration.

        Raises:
            ObjectiveError: a signal is unknown, a number has no `violated_above` or `violated_below`, an indicator has
                one or is bounded by its mean, or a condition is no other indicator.
        """
        for signal in POLICY_SIGNALS:
            if signal in kinds and signal in self.policy_signals.values():
                raise ObjectiveError(
                    f"Expected the task's signals to have other names than the policy's own, but got '{signal}', try "
                    "another name for the task's signal."
                )
        for name in self.rewards:
            check_declared(f"reward '{name}'", name, kinds)
        for name, constraint in self.constraints.items():
            if name in self.policy_signals:
                _check_policy_signal(name, constraint)
            else:
                _check_task_signal(name, constraint, kinds)

    def made(self, signals: Mapping[str, Signal], prompts: PromptGroups) -> dict[str, Signal]:
        """The task's signals, and those of the answers that count for a constraint.

        Raises:
            ObjectiveError: an indicator has another value than 0 and 1, or counts give no rate.
        """
        all_signals = with_subsets(self.constraints, signals, prompts)
        # The signals that must be indicators: who needs each, and what to try instead.
        users: dict[str, tuple[str, str]] = {}
        for name, constraint in self.constraints.items():
            if constraint.given is not None:
                users[constraint.given] = f"'{constraint.given}', given: to constraint '{name}',", "an indicator"
            if not (constraint.bound.of_mean or constraint.from_number):
                hint = "violated_above: or violated_below: with a limit"
                users[signal_key(name, constraint)] = f"the signal of constraint '{name}'", hint
        check_indicators(all_signals, users)
        return all_signals

    def components(self, signals: Signals) -> Components:
        """The components of an update's answers. Collective, if a constraint has a condition."""
        import torch

        from lightning_cgrpo.core.rollout import over_steps
        from lightning_cgrpo.objective.rounding import without_residue

        # The rewards, then the constraints, larger is better: [B, G] or, by step, [B, G, T] each.
        values = [signals[name].value for name in self.rewards]
        applicable = [signals[name].applicable for name in self.rewards]
        for name, constraint in self.compared.items():
            signal = signals[signal_key(name, constraint)]
            rate = None if constraint.given is None else _batch_rate(constraint, signal)
            values.append(constraint.component(signal, rate))
            # An answer outside the condition costs nothing, and is compared with the others: the policy decides whether
            # the condition holds, unlike which prompts are in a subset.
            applicable.append(signals[signal_key(name, replace(constraint, given=None))].applicable)
        # Sum over the steps, in float64, because rounding of long sums would tell equal answers apart.
        values = [as_number(value) for value in values]
        sums = []  # [B, G] each
        for value in values:
            total = over_steps(value.double()).to(value.dtype)
            sums.append(without_residue(total, over_steps(value.abs())))
        # One tensor for all components; a signal without a mask applies to every answer.
        has_float64 = any(total.dtype is torch.float64 for total in sums)
        dtype = torch.float64 if has_float64 else sums[0].dtype
        everywhere = torch.ones_like(sums[0], dtype=torch.bool)
        masks = [everywhere if mask is None else mask for mask in applicable]
        return Components(
            torch.stack([total.to(dtype) for total in sums]),
            torch.stack(masks),
            {component: value for component, value in enumerate(values) if value.dim() == 3},
        )

    def component_weights(self, weights: Tensor) -> Tensor:
        """Weights ``[J]`` of the components, from the weights ``[1 + K]`` of the reward and the constraints."""
        import torch

        # The rewards share the reward's weight, by their own weights.
        rewards = torch.tensor(list(self.rewards.values()), dtype=weights.dtype, device=weights.device)
        component_weights = [weights[:1] * rewards]
        # A constraint on the policy's own signal is no component.
        for k, name in enumerate(self.constrained):
            if name not in self.policy_signals:
                component_weights.append(weights[1 + k : 2 + k])
        return torch.cat(component_weights)

    def penalties(self, weights: Tensor) -> dict[str, Tensor]:
        """Coefficients of the policy's own signals in the loss, by signal.

        The coefficient of an enforced constraint is its weight of ``weights [1 + K]``, per nat.
        """
        penalties: dict[str, Tensor] = {}
        for k, (name, constraint) in enumerate(self.constrained.items()):
            signal = self.policy_signals.get(name)
            if signal is None:
                continue
            penalty = -weights[1 + k] if constraint.bound.lower else weights[1 + k]
            # Several constraints on one signal add up.
            if signal in penalties:
                penalty = penalties[signal] + penalty
            penalties[signal] = penalty
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
            unmeasured_policy_signal = name in self.policy_signals and self.policy_signals[name] not in signals
            if unmeasured_policy_signal:
                continue
            violations, opportunities = constraint.violations(signals[signal_key(name, constraint)])
            violations_B = violations.double().flatten(1).sum(-1)
            opportunities_B = opportunities.double().flatten(1).sum(-1)
            counts[name] = torch.stack([violations_B, opportunities_B])
        return counts

    def violations(self, signals: Signals) -> tuple[Tensor, Tensor]:
        """Violations and opportunities of all constraints, float64 ``[len(constraints)]`` each."""
        return over_prompts(self.counts(signals), self.constraints)


def _check_policy_signal(name: str, constraint: Constraint) -> None:
    """Refuse a constraint on the policy's own signal, unless it bounds the mean on all answers."""
    bound = constraint.bound
    if not bound.of_mean or constraint.of_some:
        some = " and where:, by: or given:" if constraint.of_some else ""
        raise ObjectiveError(
            f"Expected constraint '{name}' to bound the mean of the policy's own '{constraint.signal or name}' on all "
            f"answers, but got {bound.key}{some}, try mean_at_most: {bound.threshold or 0.1:g} alone."
        )


def _check_task_signal(name: str, constraint: Constraint, kinds: Mapping[str, SignalKind]) -> None:
    """Refuse an unknown signal, and a bound that does not fit the signal's kind."""
    signal = constraint.signal or name
    bound = constraint.bound
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


def _batch_rate(constraint: Constraint, signal: Signal) -> Tensor:
    """Rate of violation over the answers of all processes; the target without any opportunity. Collective."""
    import torch

    from lightning_cgrpo.core.distributed import all_sum

    violations, opportunities = constraint.violations(signal)
    counts = torch.stack([violations.double().sum(), opportunities.double().sum()])
    total_violations, total_opportunities = all_sum(counts)
    measured_rate = total_violations / total_opportunities
    rate = torch.where(total_opportunities > 0, measured_rate, constraint.bound.target)
    return rate.to(as_number(signal.value).dtype)


def over_prompts(counts: Mapping[str, Tensor], names: Iterable[str]) -> tuple[Tensor, Tensor]:
    """Violations and opportunities of the named constraints, float64 ``[len(names)]`` each, from `Objective.counts`."""
    import torch

    named_counts = [counts[name] for name in names]  # [2, B] each
    if not named_counts:
        return torch.zeros(0, dtype=torch.float64), torch.zeros(0, dtype=torch.float64)
    violations, opportunities = torch.stack(named_counts).unbind(1)  # [len(names), B] each
    return violations.sum(-1), opportunities.sum(-1)
