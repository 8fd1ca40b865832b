"""Floors and caps of the policy's weights, around any controller.

callbacks:
multipliers:
class_path: examples.controllers.bounded_weights.BoundedWeights
init_args:
controller: lightning_cgrpo.multipliers.SoftmaxAdam
floor: {reward: 0.2} # the reward keeps a fifth of the weight
cap: 0.6
"""

from __future__ import annotations

import torch
from lightning.pytorch import Trainer
from torch import Tensor

from lightning_cgrpo.callbacks import LagrangianCallback
from lightning_cgrpo.core.errors import UserError, did_you_mean, expect
from lightning_cgrpo.modules.constrained_grpo import ConstrainedGRPO
from lightning_cgrpo.multipliers import Controller, SoftmaxAdam, StallDetector

ROUNDING = 1e-9
"""Tolerance of sums of bounds, so that ten floors of 0.1 are feasible."""
SMALLEST = 1e-12
"""Weight from which a logit resumes where a cap left a weight of 0."""


class BoundedWeights(LagrangianCallback):
    """`LagrangianCallback` whose policy sees the controller's weights within floors and caps.

    The logits of `SoftmaxAdam` have no bounds of their own. They continue from the bounded weights, so a weight soon
    leaves its bound.

    Args:
        controller: by default `DampedAscent`.
        stall: finds likely infeasible constraints; by default with its own defaults.
        every_n_updates: updates with pooled counts per dual step.
        floor: smallest weight, of all components or by name.
        cap: largest weight, of all components or by name.

    Raises:
        UserError: (at setup) bounds that no weights meet, or an unknown name.
    """

    def __init__(
        self,
        controller: Controller | None = None,
        stall: StallDetector | None = None,
        every_n_updates: int = 1,
        floor: float | dict[str, float] = 0.0,
        cap: float | dict[str, float] = 1.0,
    ) -> None:
        super().__init__(controller, stall, every_n_updates)
        for argument, bound in (("floor", floor), ("cap", cap)):
            for value in bound.values() if isinstance(bound, dict) else [bound]:
                expect(0 <= value <= 1, argument, "in [0, 1], a share of the weight", value)
        self.floor, self.cap = floor, cap

    def setup(self, trainer: Trainer, pl_module: ConstrainedGRPO, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        names = pl_module.objective.weight_names
        self.floors = by_component("floor", self.floor, 0.0, names)
        self.caps = by_component("cap", self.cap, 1.0, names)
        check_feasible(self.floors, self.caps, names)

    def detect_stall(self, rates: Tensor, observed: Tensor, saturation: Tensor) -> None:
        """A constraint at its cap here has all the weight that it can have."""
        highest = torch.minimum(self.caps, 1 - self.floors.sum() + self.floors)
        shares = bounded(self.controller.weights, self.floors, self.caps) / highest
        super().detect_stall(rates, observed, torch.maximum(saturation, shares[1:]))

    def control(self, rates: Tensor, violations: Tensor) -> None:
        weights = self.controller.weights
        within = bounded(weights, self.floors, self.caps)
        if within is not weights:  # only then, because log and softmax round
            adopt(self.controller, within)
        super().control(rates, violations)

    def weight(self, pl_module: ConstrainedGRPO, update: int) -> None:
        super().weight(pl_module, update)
        pl_module.weights.copy_(bounded(self.controller.weights, self.floors, self.caps))


def bounded(weights: Tensor, floor: Tensor, cap: Tensor) -> Tensor:
    """The closest weights in KL divergence within floor <= x <= cap, sum x = 1.

    argmin KL(x || weights) is x_j = clip(c weights_j, floor_j, cap_j) with c for the sum 1. Each turn fixes the
    side (floors or caps) with the larger total violation (Bitran & Hax, 1981). If all positive weights are at their
    caps, weights of 0 share the rest. Feasible weights stay, bit for bit.

    Args:
        weights: ``[1 + K]``, >= 0, of sum 1.
        floor: ``[1 + K]``, of sum <= 1.
        cap: ``[1 + K]``, of sum >= 1.

    Example:
        >>> floor, cap = torch.tensor([0.1, 0.1, 0.0]), torch.ones(3)
        >>> bounded(torch.tensor([0.00, 0.25, 0.75]), floor, cap)
        tensor([0.1000, 0.2250, 0.6750])
    """
    floor, cap = floor.to(weights), cap.to(weights)
    if bool(((floor <= weights) & (weights <= cap)).all()):
        return weights
    result = weights.clone()
    free = torch.ones_like(weights, dtype=torch.bool)
    while bool(free.any()):
        # Scale the free weights to the mass that the fixed weights leave.
        mass = (1 - result[~free].sum()).clamp(min=0)
        shares = torch.where(free, weights, 0)
        if not bool(shares.any()):
            shares = free.to(weights)
        scaled = shares * (mass / shares.sum())
        # Fix the weights on the side with the larger total violation at their bounds.
        missing = torch.where(free, floor - scaled, 0).clamp(min=0)
        excess = torch.where(free, scaled - cap, 0).clamp(min=0)
        if bool(missing.sum() >= excess.sum()):
            fixed, bound = missing > 0, floor
        else:
            fixed, bound = excess > 0, cap
        if not bool(fixed.any()):
            return torch.where(free, scaled, result)
        result = torch.where(fixed, bound, result)
        free = free & ~fixed
    return result


def adopt(controller: Controller, weights: Tensor) -> None:
    """Let the logits of `SoftmaxAdam` continue from weights ``[1 + K]``; other controllers bound their own states."""
    if not isinstance(controller, SoftmaxAdam):
        return
    # The logits' log-sum stays, because softmax ignores it and Adam moves logits relative to it.
    logits = torch.stack([logit.detach() for logit in controller.logits])
    moved = weights.clamp(min=SMALLEST).log() + torch.logsumexp(logits, dim=0)
    with torch.no_grad():
        for logit, value in zip(controller.logits, moved, strict=True):
            logit.copy_(value)


def by_component(argument: str, bound: float | dict[str, float], default: float, names: list[str]) -> Tensor:
    """A bound of each weight, ``[1 + K]``."""
    if not isinstance(bound, dict):
        return torch.full((len(names),), bound, dtype=torch.float64)
    for name in bound:
        if name not in names:
            hint = did_you_mean(name, names)
            raise UserError(f"Expected argument `{argument}` to name weights among {names}, but got '{name}'.{hint}")
    return torch.tensor([bound.get(name, default) for name in names], dtype=torch.float64)


def check_feasible(floor: Tensor, cap: Tensor, names: list[str]) -> None:
    """Raise a `UserError` unless some weights of sum 1 are within the bounds."""
    for name, least, most in zip(names, floor.tolist(), cap.tolist(), strict=True):
        if least > most:
            raise UserError(f"Expected floors below caps, but got floor {least:g} and cap {most:g} for '{name}'.")
    if floor.sum() > 1 + ROUNDING:
        raise UserError(
            f"Expected the floors of all {len(floor)} weights to sum to 1 at most, but got {floor.sum():g}, "
            "because weights sum to 1, try lower floors."
        )
    if cap.sum() < 1 - ROUNDING:
        raise UserError(
            f"Expected the caps of all {len(cap)} weights to sum to 1 at least, but got {cap.sum():g}, "
            "because weights sum to 1, try higher caps."
        )
