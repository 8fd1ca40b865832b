"""Units of the dual's violations: what one constraint's violation is to another's."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from lightning_cgrpo.core.rollout import Signals, over_steps
from lightning_cgrpo.objective.group_statistics import divide_or_zero, group_statistics
from lightning_cgrpo.objective.objective import Components, Objective
from lightning_cgrpo.objective.subsets import signal_key
from lightning_cgrpo.objective.units import RunningDeviation, standard_units

LARGEST = 10.0
"""Largest violation of a mean in its unit, because a policy whose answers all agree has a unit near 0."""


class Units(nn.Module):
    """The unit ``[K]`` of each constraint's violation.

    - of a rate with threshold d: sqrt(d (1 - d)), see `standard_units`, or 1
    - of a drift: its bound, or what is held, because a drift falls as a power of its multiplier
    - of another mean: the running deviation of answers within groups, in proportion to which a standardized advantage
      moves a mean

    Args:
        standard: whether rates have standard units.
    """

    def __init__(self, objective: Objective, standard: bool) -> None:
        super().__init__()
        constraints = objective.constrained
        self.standard = standard
        self.names = list(constraints)
        self.means = torch.tensor([constraint.bound.of_mean for constraint in constraints.values()])
        self.drifts = torch.tensor([name in objective.drifts for name in constraints])
        self.spreads = bool((self.means & ~self.drifts).any())
        """True if any unit is a deviation within groups."""
        self.deviation = RunningDeviation(len(constraints))
        """Updated by `within_groups`, summed over processes."""

    def at(self, thresholds: Tensor) -> Tensor:
        """Units at thresholds ``[K]`` of violation; NaN where no two answers to a prompt ever differed."""
        units = standard_units(thresholds) if self.standard else torch.ones_like(thresholds)
        units = torch.where(self.means, self.deviations, units)
        return torch.where(self.drifts, thresholds.abs(), units)

    @property
    def deviations(self) -> Tensor:
        """Deviations of answers' means within groups ``[K]``; NaN of rates and drifts, and where no two differed."""
        std = self.deviation.std
        return torch.where(self.means & ~self.drifts & (std > 0), std, torch.nan)

    def clamped(self, violations: Tensor) -> Tensor:
        """Violations ``[K]`` in units, with those of means at most `LARGEST`."""
        return torch.where(self.means, violations.clamp(-LARGEST, LARGEST), violations)


def within_groups(objective: Objective, signals: Signals, names: Iterable[str]) -> Tensor:
    """Squares of deviations within groups, and their degrees of freedom, ``[2, len(names)]`` float64; 0 of rates.

    A deviation is that of an answer's own mean (its sum / its opportunities) from its group's mean. Drifts count as 0,
    because their unit is their bound, and so do signals that a critic's warm-up leaves unmeasured.
    """
    columns = []
    device = next(iter(signals.values())).value.device
    for name in names:
        constraint = objective.constraints[name]
        measured = signals.get(signal_key(name, constraint))
        has_unit_of_deviation = constraint.bound.of_mean and name not in objective.drifts
        if measured is None or not has_unit_of_deviation:
            columns.append(torch.zeros(2, dtype=torch.float64, device=device))
            continue
        # The mean of each answer, and its deviation from the group's mean.
        sums, opportunities = constraint.violations(measured)
        sums = over_steps(sums.double())  # [B, G]
        opportunities = over_steps(opportunities.double())  # [B, G]
        means = divide_or_zero(sums, opportunities)
        statistics = group_statistics(Components(means[None], (opportunities > 0)[None]))
        squares = statistics.deviation.square().sum()
        freedom = (statistics.count - 1).clamp(min=0).sum().double()
        columns.append(torch.stack([squares, freedom]))
    return torch.stack(columns, 1)


def observed_answers(objective: Objective, signals: Signals, names: Iterable[str]) -> Tensor:
    """Answers with an opportunity ``[len(names)]``, float64; 0 of signals that a critic's warm-up leaves unmeasured."""
    device = next(iter(signals.values())).value.device
    counts = []
    for name in names:
        constraint = objective.constraints[name]
        measured = signals.get(signal_key(name, constraint))
        if measured is None:
            counts.append(torch.zeros((), dtype=torch.float64, device=device))
        else:
            _, opportunities = constraint.violations(measured)
            opportunities = over_steps(opportunities)  # [B, G]
            counts.append((opportunities > 0).sum().double())
    return torch.stack(counts)
