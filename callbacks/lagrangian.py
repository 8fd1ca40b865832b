"""Learned weights of reward and constraints: the dual."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn

from lightning_cgrpo.callbacks.fixed_weights import WeightSetter
from lightning_cgrpo.core.distributed import all_sum
from lightning_cgrpo.core.errors import UserError, expect, expect_instances
from lightning_cgrpo.modules.constrained_grpo import ConstrainedGRPO, UpdateOutput
from lightning_cgrpo.modules.update_report import logging_due
from lightning_cgrpo.multipliers import Controller, DampedAscent, StallDetector, WeightBounds
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
        weight    the policy's weights are the controller's, within bounds

    The reward takes no part. Checkpoints hold the controller's state and pending counts. A subset of the prompts pools
    counts over updates until there are enough.

    Args:
        controller: by default `DampedAscent`.
        bounds: floors and caps of the policy's weights.
        stall: finds likely infeasible constraints; by default with its own defaults.
        every_n_updates: updates with pooled counts per dual step.

    Raises:
        UserError: (at setup) no constraint to enforce.
    """

    def __init__(
        self,
        controller: Controller | None = None,
        bounds: WeightBounds | None = None,
        stall: StallDetector | None = None,
        every_n_updates: int = 1,
    ) -> None:
        expect(every_n_updates >= 1, "every_n_updates", "at least 1", every_n_updates)
        self.controller: Controller = DampedAscent() if controller is None else controller
        expect_instances(controller=controller)
        self.bounds = bounds
        self.stall = StallDetector() if stall is None else stall
        self.every_n_updates = every_n_updates
        self.constraints: dict[str, Constraint] = {}
        self.fitting, self._restored = True, False

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
        if self.bounds is not None:
            self.bounds.resolve(objective.weight_names)

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
        self.count(pl_module, outputs)
        self._log(trainer, pl_module)
        if not trainer.global_step % self.every_n_updates:
            rates = self.measure()
            violations = self.compare(rates)
            self.control(rates, violations)
        self.targets.advance(trainer.global_step, self.controller.margin)
        self.weight(pl_module, trainer.global_step)

    # ------------------------------------------------------------------ the dual's step

    def count(self, pl_module: ConstrainedGRPO, outputs: UpdateOutput) -> None:
        """Add an update's counts, summed over the processes, so that any process's checkpoint holds them."""
        counts = torch.stack([outputs["violations"], outputs["opportunities"]])
        if self.units.spreads:
            squares = within_groups(pl_module.objective, outputs["measured"], self.constraints)
            counts = torch.cat([counts, squares.to(counts)])
        violations, opportunities, *squares_and_freedom = all_sum(counts)
        self.rates.update(violations, opportunities)
        if self.units.spreads:
            self.units.deviation.update(*squares_and_freedom)

    def measure(self) -> Tensor:
        """Rates of violation (or means) ``[K]`` since the last dual step, NaN where not observed."""
        counts = self.rates.take().cpu()
        return counts[0] / counts[1]

    def compare(self, rates: Tensor) -> Tensor:
        """Violations ``[K]``: how far the rates exceed their targets, in each constraint's unit."""
        return self.units.clamped((rates - self.targets.targets) / self.units.at(self.targets.in_force))

    def control(self, rates: Tensor, violations: Tensor) -> None:
        """Step the controller; a constraint that stalls is told, and its cap lowered."""
        observed, units = ~violations.isnan(), self.units.at(self.targets.in_force)
        unbounded, saturation = self.controller.weights, self.controller.saturation
        if self.bounds is not None:
            weights = self.bounds(unbounded)
            saturation = torch.maximum(saturation, weights[1:] / self.bounds.highest_weights().to(weights))
            if weights is not unbounded:  # only then, because log and softmax round
                self.controller.adopt(weights)
        excess = (rates - self.targets.aimed) / units  # without the margin, whose fall would look like progress
        stalled = self.stall.update(saturation, excess, observed & ~self.targets.moved)
        if stalled is not None:
            name, relaxed = list(self.constraints)[stalled], self.controller.relax(stalled)
            rank_zero_warn(self.targets.stalled(stalled, name, self.stall, units, relaxed))
        self.targets.moved = torch.zeros_like(self.targets.moved)
        self.controller.step(violations, observed)

    def weight(self, pl_module: ConstrainedGRPO, update: int) -> None:
        """Give the module the weights ``[1 + K]`` and the thresholds of an update."""
        weights = self.controller.weights
        pl_module.weights.copy_(weights if self.bounds is None else self.bounds(weights))
        pl_module.thresholds |= dict(zip(self.constraints, self.targets.thresholds(update), strict=True))

    # ------------------------------------------------------------------ logs and checkpoints

    def _log(self, trainer: Trainer, pl_module: ConstrainedGRPO) -> None:
        update, weights = trainer.global_step - 1, self.controller.weights
        if not logging_due(trainer, update):
            return
        metrics: dict[str, float] = {}
        if self.bounds is not None:
            unbounded = zip(pl_module.objective.weight_names, weights.tolist(), strict=True)
            metrics |= {f"unbounded/{name}": weight for name, weight in unbounded}
        targets = zip(self.constraints.items(), self.targets.shown(self.targets.targets), strict=True)
        tightened = {name for name, c in self.constraints.items() if self.controller.margin and not c.bound.of_mean}
        metrics |= {f"aim/{name}": target for (name, c), target in targets if name in tightened or c.aim is not None}
        for logger in pl_module.loggers if metrics else ():
            logger.log_metrics(metrics, step=update)

    @property
    def _parts(self) -> dict[str, nn.Module]:
        """The parts with a state, by their key in checkpoints."""
        parts: dict[str, nn.Module] = {"controller": self.controller, "rates": self.rates, "stall": self.stall}
        return parts | ({"spread": self.units.deviation} if self.units.spreads else {})

    def state_dict(self) -> dict[str, Any]:
        state = {"names": list(self.constraints), "controller_class": type(self.controller).__name__}
        return state | {"moved": self.targets.moved} | {key: part.state_dict() for key, part in self._parts.items()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Raise a `UserError` if the checkpoint has other constraints or another controller."""
        if not self.fitting:
            return
        saved, name = state_dict["names"], type(self.controller).__name__
        if saved != list(self.constraints) or state_dict["controller_class"] != name:
            raise UserError(
                f"Expected a checkpoint with multipliers of {list(self.constraints)} by {name}, but got {saved} by "
                f"{state_dict['controller_class']}, try the configuration that it was trained with."
            )
        self._restored = True
        for key, part in self._parts.items():
            # Versions before November 25, 2026 kept other sums of a stall, and some in the controller.
            state = {n: value for n, value in state_dict.get(key, {}).items() if not n.startswith("stall.")}
            if state and "first_half" not in state:
                part.load_state_dict(state)
        self.targets.moved = state_dict.get("moved", self.targets.moved)
