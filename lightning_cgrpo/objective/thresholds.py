"""Thresholds that move toward their bounds during training."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lightning_cgrpo.objective.constraint import Constraint

HOLD = 10
"""Dual steps whose pooled rate must meet a threshold before it moves by a notch."""


class Thresholds(nn.Module):
    """The thresholds in force of K constraints.

    Without a schedule a threshold is its bound. A line or a list depends on the update's number alone. A threshold with
    notches moves after `HOLD` dual steps (in which the behavior was observed) whose pooled rate, or mean, meets the
    threshold in force; else the next `HOLD` steps are pooled.
    """

    notches: Tensor
    steps: Tensor
    sums: Tensor

    def __init__(self, constraints: Sequence[Constraint]) -> None:
        super().__init__()
        self.constraints = list(constraints)
        size = len(self.constraints)
        self.register_buffer("notches", torch.zeros(size, dtype=torch.int64))
        self.register_buffer("steps", torch.zeros(size, dtype=torch.int64))
        self.register_buffer("sums", torch.zeros(2, size, dtype=torch.float64))
        self.moving = any(constraint.start is not None for constraint in self.constraints)

    def shown(self, update: int) -> list[float]:
        """The thresholds in force, in the user's orientation."""
        notches = self.notches.tolist()
        return [c.threshold(update, n) for c, n in zip(self.constraints, notches, strict=True)]

    def in_force(self, update: int) -> Tensor:
        """The thresholds in force as rates of violation, ``[K]`` float64."""
        shown = zip(self.constraints, self.shown(update), strict=True)
        return torch.tensor([c.bound.violation(value) for c, value in shown], dtype=torch.float64)

    def observe(self, update: int, violations: Tensor, opportunities: Tensor) -> None:
        """Add the counts ``[K]`` of a dual step, on all processes."""
        counts = torch.stack([violations, opportunities]).to(self.sums)
        self.sums = self.sums + counts
        self.steps = self.steps + (counts[1] > 0)
        over = self.steps >= HOLD
        if not bool(over.any()):
            return
        held = over & (self.sums[0] / self.sums[1] <= self.in_force(update).to(self.sums))
        self.notches = self.notches + held
        self.steps = torch.where(over, 0, self.steps)
        self.sums = torch.where(over, 0.0, self.sums)
