"""Learned weights of reward and constraints: the dual."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn

from lightning_cgrpo.callbacks.weight_setter import WeightSetter
from lightning_cgrpo.core.distributed import all_sum
from lightning_cgrpo.core.errors import UserError, expect, expect_instances
from lightning_cgrpo.modules.constrained_grpo import ConstrainedGRPO, UpdateOutput
from lightning_cgrpo.modules.update_report import logging_due
from lightning_cgrpo.multipliers import Controller, DampedAscent, StallDetector
from lightning_cgrpo.multipliers.targets import Targets
from lightning_cgrpo.multipliers.units import Units, within_groups
from lightning_cgrpo.objective.behavior_rate import BehaviorRate
from lightning_cgrpo.objective.constraint import Constraint


class LagrangianCallback(WeightSetter):
    """Learns the weights of reward and constraints from the rates of violation (paper, section 3).

    After each update, the dual takes a step, and the next update uses the new weights:

        measure   p_k = violations / opportunities, over all answers of all processes
        compare   v_k = (p_k - target_k) / unit_k
        control   the controller moves the multipliers by v
        weight    the policy's weights are the controller's

    In words of the paper: lambda ascends the Lagrangian by the constraints' violations. The reward takes no part.
    Checkpoints hold the controller's state and pending counts. A subset of the prompts pools counts over updates until
    there are enough.

    Args:
        controller: by default `DampedAscent`.
        stall: finds likely infeasible constraints; by default with its own defaults.
        every_n_updates: updates with pooled counts per dual step.

    Raises:
        UserError: (at setup) no constraint to enforce.
    """

    def __init__(
        self,
        controller: Controller | None = None,
        stall: StallDetector | None = None,
        every_n_updates: int = 1,
    ) -> None:
        expect(every_n_updates >= 1, "every_n_updates", "at least 1", every_n_updates)
        self.controller: Controller = DampedAscent() if controller is None else controller
        expect_instances(controller=controller)
        self.stall = StallDetector() if stall is None else stall
        self.every_n_updates = every_n_updates
        self.constraints: dict[str, Constraint] = {}
        self.fitting = True
        self._restored = False

    def setup(self, trainer: Trainer, pl_module: ConstrainedGRPO, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        self.fitting = stage == "fit"
        objective = pl_module.objective
        if not objective.constrained:
            raise UserError(
                "Expected the objective to have a constraint with role: constrain, but it has none, try adding one, or "
                "removing LagrangianCallback (plain GRPO)."
            )
        if self.constraints != objective.constrained:
            self.constraints = objective.constrained
            subsets = [constraint.where is not None for constraint in self.constraints.values()]
            self.rates = BehaviorRate(len(subsets), rare=subsets, sync_on_compute=False)
            self.targets = Targets(list(self.constraints.values()))
            self.units = Units(objective, self.controller.standard_units)
        self.controller.setup(len(self.constraints))
        self.stall.setup(len(self.constraints))

    def on_train_start(self, trainer: Trainer, pl_module: ConstrainedGRPO) -> None:
        updates = trainer.estimated_stepping_batches
        if self.every_n_updates > updates:
            raise UserError(
                f"Expected every_n_updates to be at most {updates}, the updates of this run, but got "
                f"{self.every_n_updates}, with which no multiplier would move."
            )
        self.targets.check(self.constraints, updates)
        if trainer.global_step and not self._restored:
            rank_zero_warn(
                f"The checkpoint has no multipliers: the run resumes at update {trainer.global_step} with those that "
                f"{type(self.controller).__name__} starts with."
            )
        self.targets.enforce(trainer.global_step, self.controller.margin)
        # On the policy's device, because the processes' backend sums there.
        self.rates.to(pl_module.device)
        self.weight(pl_module, trainer.global_step)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: ConstrainedGRPO, outputs: UpdateOutput, batch: Any, batch_idx: int
    ) -> None:
        # Count the violations and opportunities of the update's answers.
        self.count(pl_module, outputs)
        self._log_targets(trainer, pl_module)
        if trainer.global_step % self.every_n_updates == 0:
            # Measure the rates since the last dual step.
            rates = self.measure()
            # Compare the rates with their targets.
            violations = self.compare(rates)
            # Control: the violations move the multipliers.
            self.control(rates, violations)
        # The thresholds in force follow their schedules, and the margin falls.
        self.targets.advance(trainer.global_step, self.controller.margin)
        # Weight the reward and the constraints of the next update.
        self.weight(pl_module, trainer.global_step)

    # ------------------------------------------------------------------ the dual's step

    def count(self, pl_module: ConstrainedGRPO, outputs: UpdateOutput) -> None:
        """Add an update's counts, summed over the processes, so that any process's checkpoint holds them."""
        counts = torch.stack([outputs["violations"], outputs["opportunities"]])  # [2, K]
        if not self.units.spreads:
            violations, opportunities = all_sum(counts)
            self.rates.update(violations, opportunities)
            return
        # The unit of a mean is the deviation of answers within their groups.
        squares = within_groups(pl_module.objective, outputs["measured"], self.constraints)  # [2, K]
        summed = all_sum(torch.cat([counts, squares.to(counts)]))  # one sum over the processes, not two
        violations, opportunities, squared_deviations, freedom = summed
        self.rates.update(violations, opportunities)
        self.units.deviation.update(squared_deviations, freedom)

    def measure(self) -> Tensor:
        """Rates of violation (or means) ``[K]`` since the last dual step, NaN where not observed."""
        violations, opportunities = self.rates.take().cpu()
        return violations / opportunities

    def compare(self, rates: Tensor) -> Tensor:
        """Violations ``[K]``: how far the rates exceed their targets, in each constraint's unit."""
        units = self.units.at(self.targets.in_force)
        return self.units.clamped((rates - self.targets.targets) / units)

    def control(self, rates: Tensor, violations: Tensor) -> None:
        """Move the controller's multipliers by the violations ``[K]``; NaN, where not observed, moves nothing."""
        observed = ~violations.isnan()
        self.detect_stall(rates, observed, self.controller.saturation)
        self.controller.step(violations, observed)

    def detect_stall(self, rates: Tensor, observed: Tensor, saturation: Tensor) -> None:
        """Warn of a constraint that has all its weight and does not get better, and lower its cap."""
        units = self.units.at(self.targets.in_force)
        # Without the margin, whose fall would look like progress.
        excess = (rates - self.targets.aimed) / units
        # A rate that follows a moving threshold would look like no progress.
        stalled = self.stall.update(saturation, excess, observed & ~self.targets.moved)
        self.targets.moved = torch.zeros_like(self.targets.moved)
        if stalled is not None:
            name = list(self.constraints)[stalled]
            relaxed = self.controller.relax(stalled)
            rank_zero_warn(self.targets.stalled(stalled, name, self.stall, units, relaxed))

    def weight(self, pl_module: ConstrainedGRPO, update: int) -> None:
        """Give the module the weights ``[1 + K]`` and the thresholds of an update."""
        pl_module.weights.copy_(self.controller.weights)
        thresholds = self.targets.thresholds(update)
        for name, threshold in zip(self.constraints, thresholds, strict=True):
            pl_module.thresholds[name] = threshold

    # ------------------------------------------------------------------ logs and checkpoints

    def _log_targets(self, trainer: Trainer, pl_module: ConstrainedGRPO) -> None:
        """Log the targets that differ from the thresholds, by an aim or by the controller's margin."""
        update = trainer.global_step - 1
        if not logging_due(trainer, update):
            return
        metrics: dict[str, float] = {}
        targets = self.targets.shown(self.targets.targets)
        for (name, constraint), target in zip(self.constraints.items(), targets, strict=True):
            tightened = self.controller.margin > 0 and not constraint.bound.of_mean
            if tightened or constraint.aim is not None:
                metrics[f"aim/{name}"] = target
        if metrics:
            for logger in pl_module.loggers:
                logger.log_metrics(metrics, step=update)

    @property
    def _parts(self) -> dict[str, nn.Module]:
        """The parts with a state, by their key in checkpoints."""
        parts: dict[str, nn.Module] = {"controller": self.controller, "rates": self.rates, "stall": self.stall}
        if self.units.spreads:
            parts["spread"] = self.units.deviation
        return parts

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {
            "names": list(self.constraints),
            "controller_class": type(self.controller).__name__,
            "moved": self.targets.moved,
        }
        for key, part in self._parts.items():
            state[key] = part.state_dict()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Raise a `UserError` if the checkpoint has other constraints or another controller."""
        if not self.fitting:
            return
        names = list(self.constraints)
        controller = type(self.controller).__name__
        if state_dict["names"] != names or state_dict["controller_class"] != controller:
            raise UserError(
                f"Expected a checkpoint with multipliers of {names} by {controller}, but got {state_dict['names']} by "
                f"{state_dict['controller_class']}, try the configuration that it was trained with."
            )
        self._restored = True
        for key, part in self._parts.items():
            # Versions before November 27, 2026 kept other sums of a stall, and some in the controller: it begins anew.
            state = {n: value for n, value in state_dict.get(key, {}).items() if not n.startswith("stall.")}
            if state and (part is not self.stall or "held" in state):
                part.load_state_dict(state)
        self.targets.moved = state_dict.get("moved", self.targets.moved)
