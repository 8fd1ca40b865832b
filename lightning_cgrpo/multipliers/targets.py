"""Targets of the dual: thresholds in force, and how far inside them the controller aims."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from lightning_cgrpo.multipliers.guards import StallDetector, rounded_up
from lightning_cgrpo.objective.constraint import Constraint
from lightning_cgrpo.objective.declaration import check_schedule


class Targets:
    """Largest rates of violation that the controller aims for, of K constraints.

    A threshold in force is the declared bound, or follows the constraint's schedule, which depends on the update's
    number alone. A constraint's `aim` replaces its declared bound. The controller's margin tightens the targets of
    rates.
    """

    def __init__(self, constraints: Sequence[Constraint]) -> None:
        self.constraints = list(constraints)
        self.rates = torch.tensor([not constraint.bound.of_mean for constraint in self.constraints], dtype=torch.bool)
        self.moved = torch.zeros(len(self.constraints), dtype=torch.bool)
        """Constraints with another threshold than in the last dual step."""
        self.enforce(0)

    def check(self, names: Iterable[str], updates: float) -> None:
        """Refuse a schedule that ends after the run."""
        for name, constraint in zip(names, self.constraints, strict=True):
            check_schedule(name, constraint, updates)

    def thresholds(self, update: int) -> list[float]:
        """The thresholds in force, in the user's orientation."""
        return [constraint.threshold(update) for constraint in self.constraints]

    def enforce(self, update: int, margin: float = 0.0) -> None:
        """Set the targets of an update, by the controller's margin (see `Controller.margin`)."""
        thresholds = self.thresholds(update)
        aims = []
        for constraint, threshold in zip(self.constraints, thresholds, strict=True):
            # The aim counts from the end of a schedule.
            at_bound = threshold == constraint.bound.threshold
            aims.append(constraint.aim if at_bound and constraint.aim is not None else threshold)
        self.in_force = self._violations(thresholds)
        self.aimed = self._violations(aims)
        # The margin leaves a share of min(d, 1 - d) of a rate d unused, less from update to update.
        unused = margin / math.sqrt(1 + update)
        factor = 1 - unused * ((1 - self.aimed) / self.aimed).clamp(max=1)
        self.targets = torch.where(self.rates, factor * self.aimed, self.aimed)

    def _violations(self, values: Iterable[float]) -> Tensor:
        pairs = zip(self.constraints, values, strict=True)
        return torch.tensor([c.bound.violation(value) for c, value in pairs], dtype=torch.float64)

    def advance(self, update: int, margin: float) -> None:
        """`enforce`, and note which thresholds have moved."""
        before = self.in_force
        self.enforce(update, margin)
        self.moved = self.moved | (self.in_force != before)

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
