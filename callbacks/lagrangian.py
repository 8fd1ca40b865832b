"""Learned weights of reward and constraints: the dual."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_warn

from lightning_cgrpo.callbacks.weight_setter import WeightSetter
from lightning_cgrpo.core.errors import UserError, expect, expect_kinds
from lightning_cgrpo.modules.constrained_grpo import ConstrainedGRPO, UpdateOutput
from lightning_cgrpo.modules.update_report import logging_due
from lightning_cgrpo.multipliers import Controller, StallDetector
from lightning_cgrpo.multipliers.dual import Dual


class LagrangianCallback(Dual, WeightSetter):
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
        if controller is not None:
            expect_kinds(controller=(controller, Controller))
        expect(every_n_updates >= 1, "every_n_updates", "at least 1", every_n_updates)
        super().__init__(controller, stall)
        self.every_n_updates = every_n_updates
        self.fitting = True
        self._restored = False

    def setup(self, trainer: Trainer, pl_module: ConstrainedGRPO, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        self.fitting = stage == "fit"
        self.declare(pl_module.objective)

    def on_train_start(self, trainer: Trainer, pl_module: ConstrainedGRPO) -> None:
        updates = trainer.estimated_stepping_batches
        if self.every_n_updates > updates:
            raise UserError(
                f"Expected every_n_updates to be at most {updates}, the updates of this run, but got "
                f"{self.every_n_updates}, with which no multiplier would move."
            )
        self.targets.check_schedules(self.constraints, updates)
        if trainer.global_step and not self._restored:
            rank_zero_warn(
                f"The checkpoint has no multipliers: the run resumes at update {trainer.global_step} with those that "
                f"{type(self.controller).__name__} starts with."
            )
        self.enforce(trainer.global_step)
        self.weight(pl_module, trainer.global_step)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: ConstrainedGRPO, outputs: UpdateOutput, batch: Any, batch_idx: int
    ) -> None:
        # Count the violations and opportunities of the update's answers.
        self.count(pl_module.objective, outputs["violations"], outputs["opportunities"], outputs["measured"])
        # The margin is of all answers so far, these included.
        self.enforce(trainer.global_step - 1)
        self._log_targets(trainer, pl_module)
        if trainer.global_step % self.every_n_updates == 0:
            # Measure the rates since the last dual step.
            rates = self.measure()
            # Compare the rates with their targets.
            violations = self.compare(rates)
            # Control: the violations move the multipliers.
            self.control(rates, violations)
        # The thresholds in force follow their schedules.
        self.advance(trainer.global_step)
        # Weight the reward and the constraints of the next update.
        self.weight(pl_module, trainer.global_step)

    def on_validation_end(self, trainer: Trainer, pl_module: ConstrainedGRPO) -> None:
        # The margin leaves room for the error of validations, which decide on the policies of this run.
        fits = trainer.state.fn == "fit" and not trainer.sanity_checking
        if fits and "val" in pl_module.evaluations:
            self.note_validation(pl_module.evaluations["val"].rates)
            self.note_look(pl_module.objective, pl_module.evaluations["val"])

    def weight(self, pl_module: ConstrainedGRPO, update: int) -> None:
        """Give the module the weights ``[1 + K]``, the thresholds of an update, and what stalled constraints hold."""
        pl_module.weights.copy_(self.controller.weights)
        thresholds = self.targets.thresholds(update)
        for name, threshold in zip(self.constraints, thresholds, strict=True):
            pl_module.thresholds[name] = threshold
        pl_module.held = self.held

    def _log_targets(self, trainer: Trainer, pl_module: ConstrainedGRPO) -> None:
        """Log the targets that differ from the thresholds, by an aim or by the controller's margin."""
        update = trainer.global_step - 1
        if not logging_due(trainer, update):
            return
        metrics: dict[str, float] = {}
        targets = self.targets.shown(self.targets.targets)
        for (name, constraint), target in zip(self.constraints.items(), targets, strict=True):
            has_margin = self.controller.margin > 0 and name not in pl_module.objective.drifts
            if has_margin or constraint.aim is not None or pl_module.objective.look is not None:
                metrics[f"aim/{name}"] = target
        if metrics:
            for logger in pl_module.loggers:
                logger.log_metrics(metrics, step=update)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if not self.fitting:
            return
        super().load_state_dict(state_dict)
        self._restored = True
