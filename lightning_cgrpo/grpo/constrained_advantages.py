"""Constrained GRPO for any training loop: measured answers in, advantages out."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_cgrpo.core.distributed import rank_zero_warn
from lightning_cgrpo.core.errors import UserError, expect_kinds, kind_of
from lightning_cgrpo.core.rollout import PromptGroups, Signal, Signals
from lightning_cgrpo.grpo.advantages import AdvantageEstimator, ScalarizedAdvantages
from lightning_cgrpo.multipliers.controller import Controller
from lightning_cgrpo.multipliers.dual import Dual
from lightning_cgrpo.multipliers.guards import StallDetector
from lightning_cgrpo.objective.faults import isolate_faults
from lightning_cgrpo.objective.group_statistics import group_statistics
from lightning_cgrpo.objective.objective import Objective, over_prompts


class ConstrainedAdvantages:
    """Advantages of answers, whose rates of violation move the weights of the next call.

    A call is one update of `ConstrainedGRPO` and `LagrangianCallback` without their sampling and their optimizer:

        1. compare the answers of each group by each component, a reward or minus the cost of a constraint
        2. combine the components by the weights into advantages
        3. count violations, and let the dual move the weights

    Args:
        objective: reward and constraints, on signals by name.
        controller: of the multipliers, by default `DampedAscent`.
        estimator: by default `ScalarizedAdvantages`.
        stall: finds likely infeasible constraints; by default with its own defaults.

    Raises:
        UserError: no constraint to enforce, or a constraint on the policy's own ``kl`` or ``entropy``.

    Example:
        >>> from lightning_cgrpo import Constraint
        >>> advantages_of = ConstrainedAdvantages(Objective("speed", {"collision": Constraint(at_most=0.05)}))
        >>> speed, collision = torch.tensor([[3.0, 1.0]]), torch.tensor([[1.0, 0.0]])
        >>> advantages_of({"speed": speed, "collision": collision})  # with equal weights, reward and cost cancel
        tensor([[0., 0.]])
        >>> bool(advantages_of({"speed": speed, "collision": collision})[0, 0] < 0)  # after a violation, they do not
        True
    """

    def __init__(
        self,
        objective: Objective,
        controller: Controller | None = None,
        estimator: AdvantageEstimator | None = None,
        stall: StallDetector | None = None,
    ) -> None:
        expect_kinds(objective=(objective, Objective))
        if controller is not None:
            expect_kinds(controller=(controller, Controller))
        for name, signal in objective.policy_signals.items():
            raise UserError(
                f"Expected constraints on measured signals, but got '{name}' on the policy's own '{signal}', which "
                "enters a loss and no advantage, try a KL or entropy term of your loop."
            )
        self.objective = objective
        self.estimator: AdvantageEstimator = ScalarizedAdvantages() if estimator is None else estimator
        self.dual = Dual(controller, stall)
        self.dual.declare(objective)
        self.updates = 0
        """Steps of the dual so far."""
        self.dual.enforce(0)

    @property
    def controller(self) -> Controller:
        return self.dual.controller

    @property
    def weights(self) -> dict[str, float]:
        """Weights of the next call: of ``reward``, then of each enforced constraint; their sum is 1."""
        return dict(zip(self.objective.weight_names, self.controller.weights.tolist(), strict=True))

    @property
    def thresholds(self) -> dict[str, float]:
        """Thresholds of the next call by enforced constraint, in the user's orientation."""
        return dict(zip(self.dual.constraints, self.dual.targets.thresholds(self.updates), strict=True))

    def __call__(
        self, measured: Mapping[str, Tensor | Signal], columns: Mapping[str, Sequence[Any] | Tensor] | None = None
    ) -> Tensor:
        """Advantages ``[B, G]`` of G answers to each of B prompts; then the dual's step. Collective.

        Args:
            measured: signals ``[B, G]`` of this process by name. NaN does not apply, as None of a reward function.
            columns: of the prompts, B values each, which constraints with ``where``, ``by`` or limits in a column read.

        Raises:
            UserError: a signal of the objective is missing, is no tensor, or has another shape.
        """
        self.objective.check_signals(dict.fromkeys(measured, "any"))
        task_signals = as_signals(measured)
        shapes = {name: tuple(signal.value.shape[:2]) for name, signal in task_signals.items()}
        if len({*shapes.values()}) > 1 or any(len(shape) < 2 for shape in shapes.values()):
            raise UserError(f"Expected signals of one shape [prompts, answers to each], but got {shapes}.")
        # Add the signals of the answers that count for a constraint.
        prompts = PromptGroups(torch.arange(0), dict(columns or {}))
        signals = self.objective.made(task_signals, prompts)
        # The weights of this call combine the components; then the rates move the weights of the next call.
        advantages_BG = self.estimate(signals)
        self.step(signals)
        return advantages_BG

    def estimate(self, signals: Signals) -> Tensor:
        """Advantages ``[B, G]``. Collective."""
        components = self.objective.components(signals)
        weights_J = self.objective.component_weights(self.controller.weights).to(components.values.device)
        # No estimator without a critic reads rollouts.
        return self.estimator(None, group_statistics(components), weights_J)  # type: ignore[arg-type]

    def evaluate(self, signals: Signals) -> Tensor:
        """Advantages ``[B, G]`` of answers that do not train: the estimator's running statistics stay. Collective."""
        estimator = self.estimator
        self.estimator = copy.deepcopy(estimator)
        try:
            return self.estimate(signals)
        finally:
            self.estimator = estimator

    def rates(self, signals: Signals) -> dict[str, float]:
        """Rates and means of the answers by tag, ``rate/<constraint>``, without constraints that have none."""
        constraints = self.objective.constraints
        violations, opportunities = over_prompts(self.objective.counts(signals), constraints)
        violation_rates = (violations / opportunities).tolist()
        rates: dict[str, float] = {}
        for (name, constraint), rate in zip(constraints.items(), violation_rates, strict=True):
            if not math.isnan(rate):
                rates[constraint.bound.tag(name)] = constraint.bound.shown(rate)
        return rates

    def step(self, signals: Signals) -> None:
        """Move the multipliers by the rates of violation. Collective."""
        counts = self.objective.counts(signals)
        violations_K, opportunities_K = over_prompts(counts, self.objective.constrained)
        # Count the violations and opportunities of all processes' answers.
        self.dual.count(self.objective, violations_K, opportunities_K, signals)
        # The margin is of all answers so far, these included.
        self.dual.enforce(self.updates)
        # Measure the rates since the last step.
        rates_K = self.dual.measure()
        # Compare the rates with their targets.
        excess_K = self.dual.compare(rates_K)
        # Control: the violations move the multipliers.
        self.dual.control(rates_K, excess_K)
        # The thresholds in force follow their schedules.
        self.updates += 1
        self.dual.advance(self.updates)

    def state_dict(self) -> dict[str, Any]:
        """The state for a checkpoint, from which `load_state_dict` continues exactly."""
        return {
            "updates": self.updates,
            "dual": self.dual.state_dict(),
            "estimator": self.estimator.running_state(),
            "bounds": self._bounds,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Warn of other thresholds; raise a `UserError` for other constraints or another controller."""
        self.dual.load_state_dict(state["dual"])
        self.estimator.load_running_state(state["estimator"])
        self.updates = state["updates"]
        self.dual.enforce(self.updates)
        for name, bound in state["bounds"].items():
            if bound != self._bounds[name]:
                rank_zero_warn(
                    f"Constraint '{name}' continues with {self._bounds[name]}, but the checkpoint was trained with "
                    f"{bound}: its multiplier goes on from there."
                )

    @property
    def _bounds(self) -> dict[str, str]:
        """The bounds of the enforced constraints as texts, for checkpoints."""
        texts: dict[str, str] = {}
        for name, constraint in self.objective.constrained.items():
            bound = constraint.bound
            texts[name] = f"{bound.key}: {bound.threshold:g}"
        return texts


def as_signals(measured: Mapping[str, Tensor | Signal]) -> dict[str, Signal]:
    """The signals, also of tensors ``[B, G]``, in which a value that is not finite does not apply."""
    whole_signals = {name: value for name, value in measured.items() if isinstance(value, Signal)}
    signals, _ = isolate_faults(whole_signals)
    for name, value in measured.items():
        if isinstance(value, Signal):
            continue
        if not isinstance(value, Tensor):
            raise UserError(
                f"Expected signal '{name}' to be a tensor, but got {kind_of(value)}, try torch.tensor(...)."
            )
        value = value.detach()  # an advantage is a constant, also of a simulator with gradients
        finite = value.isfinite()
        signals[name] = Signal(torch.where(finite, value, 0), applicable=finite)
    return signals
