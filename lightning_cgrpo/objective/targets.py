"""Targets of the dual: thresholds in force, and how far inside them the controller aims."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from lightning_cgrpo.multipliers import StallDetector, rounded_up
from lightning_cgrpo.objective.constraint import Constraint
from lightning_cgrpo.objective.declaration import check_schedule

HOLD = 10
"""Dual steps whose pooled rate must meet a threshold before it moves by a notch."""


class Targets(nn.Module):
    """Largest rates of violation that the controller aims for, of K constraints.

    A threshold in force is the declared bound, or follows the constraint's schedule. A line or a list depends on the
    update's number alone. A threshold with notches moves after `HOLD` dual steps (in which the behavior was observed)
    whose pooled rate, or mean, meets it; else the next `HOLD` steps are pooled. A constraint's `aim` replaces its
    declared bound. The controller's margin tightens the targets of rates.
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
        self.scheduled = any(constraint.start is not None for constraint in self.constraints)
        self.rates = torch.tensor([not constraint.bound.of_mean for constraint in self.constraints], dtype=torch.bool)
        self.moved = torch.zeros(size, dtype=torch.bool)
        """Constraints with another threshold than in the last dual step."""
        self.enforce(0)

    def check(self, names: Iterable[str], updates: float) -> None:
        """Refuse a schedule that ends after the run."""
        for name, constraint in zip(names, self.constraints, strict=True):
            check_schedule(name, constraint, updates)

    def thresholds(self, update: int) -> list[float]:
        """The thresholds in force, in the user's orientation."""
        notches = self.notches.tolist()
        return [c.threshold(update, n) for c, n in zip(self.constraints, notches, strict=True)]

    def enforce(self, update: int, margin: float = 0.0) -> None:
        """Set the targets of an update, by the controller's margin (see `Controller.margin`)."""
        thresholds = self.thresholds(update)
        pairs = zip(self.constraints, thresholds, strict=True)
        aims = [value if c.aim is None or value != c.bound.threshold else c.aim for c, value in pairs]
        self.in_force, self.aimed = self._violations(thresholds), self._violations(aims)
        left = 1 - margin / math.sqrt(1 + update) * ((1 - self.aimed) / self.aimed).clamp(max=1)
        self.targets = torch.where(self.rates, left * self.aimed, self.aimed)

    def _violations(self, values: Iterable[float]) -> Tensor:
        pairs = zip(self.constraints, values, strict=True)
        return torch.tensor([c.bound.violation(value) for c, value in pairs], dtype=torch.float64)

    def advance(self, update: int, margin: float) -> None:
        """`enforce`, and note which thresholds have moved."""
        before = self.in_force
        self.enforce(update, margin)
        self.moved = self.moved | (self.in_force != before)

    def observe(self, counts: Tensor) -> None:
        """Add violations and opportunities ``[2, K]`` of a dual step, on all processes."""
        if not self.scheduled:
            return
        counts = counts.to(self.sums)
        self.sums = self.sums + counts
        self.steps = self.steps + (counts[1] > 0)
        over = self.steps >= HOLD
        if not bool(over.any()):
            return
        held = over & (self.sums[0] / self.sums[1] <= self.in_force)
        self.notches = self.notches + held
        self.steps = torch.where(over, 0, self.steps)
        self.sums = torch.where(over, 0.0, self.sums)

    def shown(self, violations: Tensor) -> list[float]:
        """Rates of violation ``[K]`` in the user's orientation."""
        return [c.bound.shown(rate) for c, rate in zip(self.constraints, violations.tolist(), strict=True)]

    def stalled(self, k: int, name: str, stall: StallDetector, units: Tensor, relaxed: bool) -> str:
        """The warning of a stalled constraint, with a threshold that the policy has reached."""
        bound = self.constraints[k].bound
        reached = float(self.aimed[k] + stall.reached[k] * units[k])
        easier = f"{bound.shown(reached):.3g}" if bound.of_mean else f"{bound.shown(rounded_up(reached)):g}"
        return (
            f"Constraint '{name}' has had at least {stall.weight:.0%} of the weight that it can have for "
            f"{stall.updates} updates, is still violated and doesn't get better: it may be infeasible. The last "
            f"{stall.updates // 2} updates reached a {bound.kind} of {bound.shown(reached):.3g}, so try {bound.key}: "
            f"{easier}.{' Its multiplier is capped at half until it is met.' if relaxed else ''}"
        )
