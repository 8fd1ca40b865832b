"""Learned weights of reward and constraints."""

from __future__ import annotations

import math
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor

from lightning_cgrpo.callbacks.weight_setter import WeightSetter
from lightning_cgrpo.distributed import all_sum
from lightning_cgrpo.errors import UserError, expect
from lightning_cgrpo.modules.constrained_grpo import ConstrainedGRPO, UpdateOutput
from lightning_cgrpo.modules.update_report import logging_due
from lightning_cgrpo.multipliers import (
    AimForTest,
    Controller,
    DampedAscent,
    ResilientSlack,
    StallDetector,
    WeightBounds,
    rounded_up,
)
from lightning_cgrpo.multipliers.spread import LARGEST, Spread
from lightning_cgrpo.multipliers.units import standard_units
from lightning_cgrpo.objective.behavior_rate import BehaviorRate
from lightning_cgrpo.objective.constraint import Constraint
from lightning_cgrpo.objective.declaration import check_schedule
from lightning_cgrpo.objective.measurement import spread
from lightning_cgrpo.objective.thresholds import Thresholds

ENOUGH = 30.0
"""Opportunities of a subset with which its rate moves a multiplier; with fewer, multipliers clip at 0 too often."""


class LagrangianCallback(WeightSetter):
    """Learns the weights of reward and constraints from the rates of violation (paper, section 3).

    After each update, counts are summed over processes, and the controller steps with v_k = rate_k - threshold_k.
    The next update uses the new weights. Checkpoints hold the controller's state and pending counts. A mean's violation
    is always in standard units, the moving estimate `Spread`. A drift's violation is a share of its bound. A subset of
    the prompts pools counts over updates until it has `ENOUGH`.

    Args:
        controller: by default `DampedAscent`.
        bounds: floors and caps of the policy's weights.
        slack: loosens infeasible thresholds.
        stall: warns of likely infeasible constraints.
        every_n_updates: updates with pooled counts per dual step.
        standard_units: give the controller violations in standard units; by default if it wants them.
        aim: tightens the rates' thresholds that the controller sees, so that the policy passes a test.

    Raises:
        UserError: (at setup) no constraint to enforce.
    """

    def __init__(
        self,
        controller: Controller | None = None,
        bounds: WeightBounds | None = None,
        slack: ResilientSlack | None = None,
        stall: StallDetector | None = None,
        every_n_updates: int = 1,
        standard_units: bool | None = None,
        aim: AimForTest | None = None,
    ) -> None:
        expect(every_n_updates >= 1, "every_n_updates", "at least 1", every_n_updates)
        self.controller: Controller = DampedAscent() if controller is None else controller
        self.bounds, self.slack, self.stall = bounds, slack, stall
        self.standard_units = self.controller.standard_units if standard_units is None else standard_units
        self.every_n_updates, self.aim = every_n_updates, aim
        self.names: list[str] = []
        self.constraints: dict[str, Constraint] = {}
        self.fitting, self._restored = True, False
        self.rates: BehaviorRate | None = None
        self.spread: Spread | None = None
        self.thresholds = Thresholds([])

    def setup(self, trainer: Trainer, pl_module: ConstrainedGRPO, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        self.fitting = stage == "fit"
        constrained = pl_module.objective.constrained
        if not constrained:
            raise UserError(
                "Expected the objective to have a constraint with role: constrain for LagrangianCallback, but it has "
                "none; remove the callback (plain GRPO) or add a constraint."
            )
        self.names = list(constrained)
        self.constraints = constrained
        self.means = torch.tensor([constraint.bound.of_mean for constraint in constrained.values()])
        self.drifts = torch.tensor([name in pl_module.objective.drifts for name in self.names])
        if self.thresholds.constraints != list(constrained.values()):
            self.thresholds = Thresholds(list(constrained.values()))
            self.spread = Spread(len(self.names)) if bool((self.means & ~self.drifts).any()) else None
            self.moved = torch.zeros_like(self.means)
        self.rare = torch.tensor([constraint.where is not None for constraint in constrained.values()])
        self._enforce(0)
        self.controller.setup(len(self.names))
        if self.stall is not None:
            self.stall.setup(len(self.names))
        if self.bounds is not None:
            self.bounds.resolve(pl_module.objective.weight_names)
        if self.rates is None:
            self.rates = BehaviorRate(len(self.names), self.means.tolist(), sync_on_compute=False)

    def _enforce(self, update: int) -> None:
        """Put the thresholds of an update in force, tightened by `aim` and by the controller's margin."""
        declared = self.thresholds.in_force(update)
        self.declared = declared
        rates = ~self.means
        self.units = torch.where(rates, standard_units(declared), 1.0)
        aims = declared.clone()
        if self.aim is not None and bool(rates.any()):
            aims[rates] = self.aim(declared[rates])
        left = 1 - self.controller.margin / math.sqrt(1 + update) * ((1 - aims) / aims).clamp(max=1)
        self.aims, self.max_violation_rates = aims, torch.where(rates, left * aims, aims)

    def weights(self) -> Tensor:
        """``[1 + K]`` float64, for the next update."""
        weights = self.controller.weights
        return weights if self.bounds is None else self.bounds(weights)

    def on_train_start(self, trainer: Trainer, pl_module: ConstrainedGRPO) -> None:
        assert self.rates is not None
        if self.every_n_updates > trainer.estimated_stepping_batches:
            raise UserError(
                f"Expected every_n_updates to be at most the {trainer.estimated_stepping_batches} updates of this run, "
                f"but got {self.every_n_updates}, with which no multiplier would move."
            )
        for name, constraint in self.constraints.items():
            check_schedule(name, constraint, trainer.estimated_stepping_batches)
        self._enforce(trainer.global_step)
        self._tell_thresholds(trainer, pl_module)
        if trainer.global_step and not self._restored:
            rank_zero_warn(
                f"The checkpoint has no multipliers: the run resumes at update {trainer.global_step} with those that "
                f"{type(self.controller).__name__} starts with."
            )
        tightened = [name for name, c in self.constraints.items() if not c.bound.of_mean]
        if self.aim is not None and tightened:
            subsets = any(self.constraints[name].where is not None for name in tightened)
            but = ", except those of subsets, with fewer prompts" if subsets else ""
            aims = ", ".join(
                f"{name} {self.constraints[name].bound.sign} {aimed:.4g} instead of {threshold:g}"
                for (name, aimed), threshold in zip(
                    self._shown(self.aims).items(), self.thresholds.shown(trainer.global_step), strict=True
                )
                if name in tightened
            )
            rank_zero_info(
                f"Aims for {aims}, so that a test of {self.aim.prompts:,} prompts meets all thresholds in "
                f"{self.aim.confidence:.0%} of tests{but}. The reward is that of the tighter thresholds; a larger test "
                "needs less."
            )
        # On the policy's device, because the processes' backend sums there.
        self.rates.to(pl_module.device)
        self._set_weights(pl_module)

    def _set_weights(self, pl_module: ConstrainedGRPO) -> None:
        pl_module.weights.copy_(self.weights())

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: ConstrainedGRPO, outputs: UpdateOutput, batch: Any, batch_idx: int
    ) -> None:
        assert self.rates is not None
        # Summed over the processes now, so that any process's checkpoint holds the counts for a later dual step.
        sums = torch.stack([outputs["violations"], outputs["opportunities"]])
        if self.spread is not None:
            sums = torch.cat([sums, spread(pl_module.objective, outputs["measured"], self.names).to(sums)])
        sums = all_sum(sums)
        self.rates.update(sums[0], sums[1])
        if self.spread is not None:
            self.spread.update(sums[2], sums[3])
        self._write(trainer, pl_module)
        if not trainer.global_step % self.every_n_updates:
            self._dual_step(trainer.global_step - 1)
        if self.thresholds.moving or self.controller.margin:
            before = self.declared
            self._enforce(trainer.global_step)
            self.moved = self.moved | (self.declared != before)
            self._tell_thresholds(trainer, pl_module)
        self._set_weights(pl_module)

    def _tell_thresholds(self, trainer: Trainer, pl_module: ConstrainedGRPO) -> None:
        shown = self.thresholds.shown(trainer.global_step)
        pl_module.thresholds = dict(zip(self.names, shown, strict=True)) if self.thresholds.moving else {}

    def _dual_step(self, update: int) -> None:
        assert self.rates is not None
        violations, opportunities = self.rates.violations, self.rates.opportunities
        # A rare subset keeps its counts until they can move a multiplier.
        pending = self.rare.to(opportunities.device) & (opportunities < ENOUGH)
        rates = torch.where(pending, torch.nan, self.rates.compute()).cpu()
        if self.thresholds.moving:
            seen = ~pending
            self.thresholds.observe(update, (violations * seen).cpu(), (opportunities * seen).cpu())
        self.rates.reset()
        if self.rare.any():
            self.rates.violations = torch.where(pending, violations, 0.0)
            self.rates.opportunities = torch.where(pending, opportunities, 0.0)
        violations = rates - self.max_violation_rates
        in_units = violations if self.spread is None else self.spread.standardized(violations, self.means)
        # A drift falls as a power of its multiplier, so a share of the bound is the unit of the multiplier's logarithm.
        in_units = torch.where(self.drifts, (violations / self.aims.abs()).clamp(-LARGEST, LARGEST), in_units)
        observed = ~in_units.isnan()
        own = self.controller.weights
        weights = own if self.bounds is None else self.bounds(own)
        if weights is not own:  # only then, because log and softmax round
            self.controller.adopt(weights)
        if self.stall is not None:
            highest = self.controller.highest_weights
            if self.bounds is not None:
                highest = torch.minimum(highest, self.bounds.highest_weights().to(highest))
            for stalled in self.stall.update(weights, violations, observed & ~self.moved, highest):
                rank_zero_warn(self._stalled(self.stall, stalled))
        violations = in_units
        if self.slack is not None:
            violations = self.slack(violations, own)
        if self.standard_units:
            violations = violations / self.units
        before = self.controller.caps
        self.controller.step(violations, observed, self.moved)
        self.moved = torch.zeros_like(self.moved)
        after = self.controller.caps
        for k in (after < before).nonzero().flatten().tolist():
            rank_zero_warn(
                f"Constraint '{self.names[k]}' has stalled at the cap of its multiplier: the cap is {after[k]:g} now, "
                f"instead of {before[k]:g}, for the reward and other constraints."
            )

    def _shown(self, rates: Tensor) -> dict[str, float]:
        """Rates of violation ``[K]`` by name, in the user's orientation."""
        shown = zip(self.constraints.items(), rates.tolist(), strict=True)
        return {name: constraint.bound.shown(rate) for (name, constraint), rate in shown}

    def _stalled(self, stall: StallDetector, k: int) -> str:
        name = self.names[k]
        constraint = self.constraints[name]
        reached = float(self.max_violation_rates[k] + stall.reached[k])
        shown = constraint.bound.shown(reached)
        easier = shown if constraint.bound.of_mean else constraint.bound.shown(rounded_up(reached))
        return (
            f"Constraint '{name}' has had at least {stall.weight:.0%} of the weight that it can have for "
            f"{stall.updates} updates, is still violated and doesn't get better: it may be infeasible. The last "
            f"{stall.updates // 2} updates reached a {constraint.bound.kind} of {shown:.3g}, so try "
            f"{constraint.bound.key}: {easier:{'.3g' if constraint.bound.of_mean else 'g'}}."
        )

    def _write(self, trainer: Trainer, pl_module: ConstrainedGRPO) -> None:
        update = trainer.global_step - 1
        if not logging_due(trainer, update):
            return
        metrics: dict[str, float] = {}
        weights = self.controller.weights
        if self.slack is not None:
            metrics |= {f"slack/{n}": s for n, s in zip(self.names, self.slack.slack(weights).tolist(), strict=True)}
        if self.bounds is not None:
            names = pl_module.objective.weight_names
            metrics |= {f"unbounded/{n}": w for n, w in zip(names, weights.tolist(), strict=True)}
        if self.aim is not None or self.controller.margin:
            metrics |= {
                f"aim/{name}": rate
                for name, rate in self._shown(self.max_violation_rates).items()
                if not self.constraints[name].bound.of_mean
            }
        if metrics:
            for logger in pl_module.loggers:
                logger.log_metrics(metrics, step=update)

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {
            "names": list(self.names),
            "controller_class": type(self.controller).__name__,
            "controller": self.controller.state_dict(),
        }
        if self.thresholds.moving:
            state["thresholds"] = self.thresholds.state_dict()
            state["moved"] = self.moved
        if self.spread is not None:
            state["spread"] = self.spread.state_dict()
        if self.rates is not None:
            state["rates"] = self.rates.state_dict()
        if self.stall is not None:
            state["stall"] = self.stall.state_dict()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Raises:
        UserError: other constraints or another controller.
        """
        if not self.fitting:
            return
        saved, name = state_dict["names"], type(self.controller).__name__
        if saved != self.names or state_dict["controller_class"] != name:
            raise UserError(
                f"Expected a checkpoint with multipliers of {self.names} by {name}, but got {saved} by "
                f"{state_dict['controller_class']}, try the configuration that it was trained with."
            )
        self._restored = True
        self.controller.load_state_dict(state_dict["controller"])
        if self.rates is not None and "rates" in state_dict:
            self.rates.load_state_dict(state_dict["rates"])
        if "thresholds" in state_dict:
            self.thresholds.load_state_dict(state_dict["thresholds"])
            self.moved = state_dict.get("moved", self.moved)
        if self.spread is not None and "spread" in state_dict:
            self.spread.load_state_dict(state_dict["spread"])
        if self.stall is not None and "stall" in state_dict:
            self.stall.load_state_dict(state_dict["stall"])
