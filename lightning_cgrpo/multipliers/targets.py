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


def tightened_rates(rates: Tensor, variance: Tensor) -> Tensor:
    """The true rates p ``[K]`` that lie one standard error below `rates`: p + sqrt(v p (1 - p)) = d.

    The solution is the lower end of Wilson's interval for a measured rate d (Wilson, 1927).

    Args:
        rates: d ``[K]``.
        variance: v ``[K]``, of a measured rate relative to that of one answer: 1 / N for N answers; infinite for none,
            which leaves d.

    Example:
        >>> tightened_rates(torch.tensor([0.01, 0.15]), torch.tensor([1 / 100, 1 / 100]))
        tensor([0.0038, 0.1178])
    """
    spread = (variance * rates * (1 - rates) + variance.square() / 4).sqrt()
    lower = (rates + variance / 2 - spread) / (1 + variance)
    return torch.where(variance.isfinite(), lower, rates)


class Targets:
    """Largest rates of violation that the controller aims for, of K constraints.

    A threshold in force is the declared bound, or follows the constraint's schedule, which depends on the update's
    number alone. A constraint's `aim` replaces its declared bound, and without an aim, the target of a declared look
    does. The controller's margin tightens the targets, see `tightened_rates`.

    Args:
        look: targets of a declared look ``[K]``, see `look_targets`; None without a look.
    """

    def __init__(self, constraints: Sequence[Constraint], look: Tensor | None = None) -> None:
        self.constraints = list(constraints)
        self.look = look
        size = len(self.constraints)  # K
        self.answers = torch.zeros(size, dtype=torch.float64)
        """Answers so far with an opportunity ``[K]``."""
        self.validated = torch.full((size,), torch.inf, dtype=torch.float64)
        """Independent answers ``[K]`` that tell as much as the last validation; infinite without validation."""
        self.rates = torch.tensor([not constraint.bound.of_mean for constraint in self.constraints], dtype=torch.bool)
        """Constraints ``[K]`` that bound a rate; the others bound a mean."""
        self.moved = torch.zeros(size, dtype=torch.bool)
        """Constraints with another threshold than in the last dual step."""
        self.declared = torch.tensor([constraint.bound.target for constraint in self.constraints], dtype=torch.float64)
        """Declared thresholds ``[K]`` of violation, which schedules reach."""
        self.held = torch.full((size,), -torch.inf, dtype=torch.float64)
        """Rates ``[K]`` of violation at which stalled constraints are held; -inf of the others."""
        self.recent = torch.zeros(size, dtype=torch.float64)
        """Mean rates ``[K]`` of violation since a hold began, with `MEMORY`."""
        self.enforce(0)

    def check_schedules(self, names: Iterable[str], updates: float) -> None:
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
        # The threshold in force, or the aim, which counts from the end of a schedule.
        thresholds = self.thresholds(update)
        aims = list(thresholds)
        has_aim = torch.zeros(len(thresholds), dtype=torch.bool)
        for k, constraint in enumerate(self.constraints):
            if constraint.aim is not None and thresholds[k] == constraint.bound.threshold:
                aims[k] = constraint.aim
                has_aim[k] = True
        self.in_force = self._as_violations(thresholds)
        self.wanted = self._as_violations(aims)
        if self.look is not None:
            # Like an aim, the target of a look counts from the end of a schedule. The margin stays, because a
            # validation chooses which policy has the look.
            schedule_ended = self.in_force == self.declared
            has_look_target = self.look.isfinite() & ~has_aim & schedule_ended
            self.wanted = torch.where(has_look_target, self.look, self.wanted)
        # A held constraint is not asked for more than it reached.
        self.aimed = torch.maximum(self.wanted, self.held)
        self.targets = self.aimed
        if margin:
            # The target lies `margin` standard errors inside, so the variance grows with its square.
            variance = self._measurement_variance(has_aim) * margin**2
            rate_targets = tightened_rates(self.aimed, variance)
            mean_targets = self.aimed if deviations is None else self.aimed - deviations * variance.sqrt()
            tighter = torch.where(self.rates, rate_targets, mean_targets)
            self.targets = torch.where(tighter.isfinite(), tighter, self.aimed)

    def _measurement_variance(self, has_aim: Tensor) -> Tensor:
        """Variance ``[K]`` of a measured rate or mean, relative to that of one answer; infinite without answers."""
        # Who sets an aim has chosen the margin for a validation or a certificate.
        validated = torch.where(has_aim, torch.inf, self.validated)
        return 1 / self.answers + 1 / validated

    def _as_violations(self, values: Iterable[float]) -> Tensor:
        """Rates of violation ``[K]`` behind rates or means in the user's orientation."""
        violations = []
        for constraint, value in zip(self.constraints, values, strict=True):
            violations.append(constraint.bound.violation(value))
        return torch.tensor(violations, dtype=torch.float64)

    def advance(self, update: int, margin: float, deviations: Tensor | None) -> None:
        """`enforce`, and note which thresholds have moved."""
        before = self.in_force
        self.enforce(update, margin, deviations)
        self.moved = self.moved | (self.in_force != before)

    def shown(self, violations: Tensor) -> list[float]:
        """Rates of violation ``[K]`` in the user's orientation."""
        pairs = zip(self.constraints, violations.tolist(), strict=True)
        return [constraint.bound.shown(rate) for constraint, rate in pairs]

    def hold(self, k: int, reached: float, unit: float) -> None:
        """Hold a stalled constraint at the rate of violation that it reached, until its threshold or aim is met."""
        # In new tensors, because a state may share the old ones.
        self.recent = self.recent.clone()
        self.held = self.held.clone()
        self.recent[k] = reached
        self.held[k] = reached + EASIER * unit

    def release(self, rates: Tensor, observed: Tensor) -> list[int]:
        """Let go of the held constraints whose mean rate meets the threshold or aim in force; return their indices."""
        recent = MEMORY * self.recent + (1 - MEMORY) * rates
        self.recent = torch.where(observed, recent, self.recent)
        met = self.held.isfinite() & (self.recent <= self.wanted)
        self.held = torch.where(met, -torch.inf, self.held)
        return met.nonzero().flatten().tolist()

    def stall_warning(self, k: int, name: str, stall: StallDetector, reached: float) -> str:
        """The warning of a stalled constraint, with a threshold that the policy has reached."""
        bound = self.constraints[k].bound
        shown = bound.shown(reached)
        warning = (
            f"Constraint '{name}' has had at least {WEIGHT:.0%} of the weight that it can have for "
            f"{stall.updates} updates, is still violated and doesn't get better: it may be infeasible. The last "
            f"{stall.updates // 2} updates reached a {bound.kind} of {shown:.3g}, so try {bound.declared_at(shown)}."
        )
        if self.held[k].isfinite():
            target = "threshold" if self.constraints[k].aim is None else "aim"
            warning += f" Until the {target} is met, training holds what was reached."
        return warning
