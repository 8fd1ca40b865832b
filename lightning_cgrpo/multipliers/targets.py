"""Targets of the dual: thresholds in force, and how far inside them the controller aims."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from lightning_cgrpo.multipliers.guards import WEIGHT, StallDetector
from lightning_cgrpo.objective.constraint import Constraint
from lightning_cgrpo.objective.declaration import check_schedule

EASIER = 0.06
"""Standard units by which a held target is easier than the rate that a stalled constraint reached."""
MEMORY = 0.98
"""Memory of a held constraint's mean rate per update: about fifty updates."""


def tightened(rates: Tensor, variance: Tensor) -> Tensor:
    """The true rates p ``[K]`` that lie one standard error below `rates`: p + sqrt(v p (1 - p)) = d.

    The solution is the lower end of Wilson's interval for a measured rate d (Wilson, 1927).

    Args:
        rates: d ``[K]``.
        variance: v ``[K]``, of a measured rate relative to that of one answer: 1 / N for N answers; infinite for none,
            which leaves d.

    Example:
        >>> tightened(torch.tensor([0.01, 0.15]), torch.tensor([1 / 100, 1 / 100]))
        tensor([0.0038, 0.1178])
    """
    spread = (variance * rates * (1 - rates) + variance.square() / 4).sqrt()
    lower = (rates + variance / 2 - spread) / (1 + variance)
    return torch.where(variance.isfinite(), lower, rates)


class Targets:
    """Largest rates of violation that the controller aims for, of K constraints.

    A threshold in force is the declared bound, or follows the constraint's schedule, which depends on the update's
    number alone. A constraint's `aim` replaces its declared bound, and without an aim, the target of a declared look
    does. The controller's margin tightens the targets, see `tightened`.

    Args:
        look: targets of a declared look ``[K]``, see `look_targets`; None without a look.
    """

    def __init__(self, constraints: Sequence[Constraint], look: Tensor | None = None) -> None:
        self.constraints = list(constraints)
        self.look = look
        self.answers = torch.zeros(len(self.constraints), dtype=torch.float64)
        """Answers so far with an opportunity ``[K]``."""
        self.validated = torch.full((len(self.constraints),), torch.inf, dtype=torch.float64)
        """Independent answers ``[K]`` that tell as much as the last validation; infinite without validation."""
        self.rates = torch.tensor([not constraint.bound.of_mean for constraint in self.constraints], dtype=torch.bool)
        self.moved = torch.zeros(len(self.constraints), dtype=torch.bool)
        """Constraints with another threshold than in the last dual step."""
        self.declared = torch.tensor([c.bound.target for c in self.constraints], dtype=torch.float64)
        """Declared thresholds ``[K]`` of violation, which schedules reach."""
        self.held = torch.full((len(self.constraints),), -torch.inf, dtype=torch.float64)
        """Rates ``[K]`` of violation at which stalled constraints are held; -inf of the others."""
        self.recent = torch.zeros(len(self.constraints), dtype=torch.float64)
        """Mean rates ``[K]`` of violation since a hold began, with `MEMORY`."""
        self.enforce(0)

    def check(self, names: Iterable[str], updates: float) -> None:
        """Refuse a schedule that ends after the run."""
        for name, constraint in zip(names, self.constraints, strict=True):
            check_schedule(name, constraint, updates)

    def thresholds(self, update: int) -> list[float]:
        """The thresholds in force, in the user's orientation."""
        return [constraint.threshold(update) for constraint in self.constraints]

    def enforce(self, update: int, margin: float = 0.0, deviations: Tensor | None = None) -> None:
        """Set the targets of an update.

        Args:
            margin: see `Controller.margin`.
            deviations: of one answer's mean, ``[K]``; NaN of rates and where unknown, which leaves a mean no margin.
        """
        thresholds = self.thresholds(update)
        aims = list(thresholds)
        has_aim = torch.zeros(len(thresholds), dtype=torch.bool)
        for k, constraint in enumerate(self.constraints):
            # The aim counts from the end of a schedule.
            if constraint.aim is not None and thresholds[k] == constraint.bound.threshold:
                aims[k] = constraint.aim
                has_aim[k] = True
        self.in_force = self._violations(thresholds)
        self.wanted = self._violations(aims)
        if self.look is not None:
            # As an aim, from the end of a schedule; the margin stays, because a validation chooses who has the look.
            looked = self.look.isfinite() & ~has_aim & (self.in_force == self.declared)
            self.wanted = torch.where(looked, self.look, self.wanted)
        # A held constraint is not asked for more than it reached.
        self.aimed = torch.maximum(self.wanted, self.held)
        self.targets = self.aimed
        if margin:
            variance = self._variance(has_aim) * margin**2
            of_rates = tightened(self.aimed, variance)
            of_means = self.aimed if deviations is None else self.aimed - deviations * variance.sqrt()
            tighter = torch.where(self.rates, of_rates, of_means)
            self.targets = torch.where(tighter.isfinite(), tighter, self.aimed)

    def _variance(self, has_aim: Tensor) -> Tensor:
        """Variance ``[K]`` of what is measured, relative to that of one answer; infinite without answers."""
        # Who sets an aim has chosen the margin for a validation or a certificate.
        validated = torch.where(has_aim, torch.inf, self.validated)
        return 1 / self.answers + 1 / validated

    def _violations(self, values: Iterable[float]) -> Tensor:
        pairs = zip(self.constraints, values, strict=True)
        return torch.tensor([c.bound.violation(value) for c, value in pairs], dtype=torch.float64)

    def advance(self, update: int, margin: float, deviations: Tensor | None) -> None:
        """`enforce`, and note which thresholds have moved."""
        before = self.in_force
        self.enforce(update, margin, deviations)
        self.moved = self.moved | (self.in_force != before)

    def shown(self, violations: Tensor) -> list[float]:
        """Rates of violation ``[K]`` in the user's orientation."""
        return [c.bound.shown(rate) for c, rate in zip(self.constraints, violations.tolist(), strict=True)]

    def hold(self, k: int, reached: float, unit: float) -> None:
        """Hold a stalled constraint at the rate of violation that it reached, until its threshold or aim is met."""
        # In new tensors, because a state may share the old ones.
        self.recent, self.held = self.recent.clone(), self.held.clone()
        self.recent[k] = reached
        self.held[k] = reached + EASIER * unit

    def release(self, rates: Tensor, observed: Tensor) -> list[int]:
        """Let go of the held constraints whose mean rate meets the threshold or aim in force; return their indices."""
        recent = MEMORY * self.recent + (1 - MEMORY) * rates
        self.recent = torch.where(observed, recent, self.recent)
        met = self.held.isfinite() & (self.recent <= self.wanted)
        self.held = torch.where(met, -torch.inf, self.held)
        return met.nonzero().flatten().tolist()

    def stalled(self, k: int, name: str, stall: StallDetector, reached: float) -> str:
        """The warning of a stalled constraint, with a threshold that the policy has reached."""
        bound = self.constraints[k].bound
        target = "threshold" if self.constraints[k].aim is None else "aim"
        holds = f" Until the {target} is met, training holds what was reached." if self.held[k].isfinite() else ""
        return (
            f"Constraint '{name}' has had at least {WEIGHT:.0%} of the weight that it can have for "
            f"{stall.updates} updates, is still violated and doesn't get better: it may be infeasible. The last "
            f"{stall.updates // 2} updates reached a {bound.kind} of {bound.shown(reached):.3g}, so try "
            f"{bound.declared_at(bound.shown(reached))}.{holds}"
        )
