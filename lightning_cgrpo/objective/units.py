"""Units of measured values: of a rate by its threshold, of other values by their deviation within groups."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lightning_cgrpo.objective.bound import Bound

MEMORY = 0.95
"""Weight of the past per update: the estimate covers about the last 20 updates."""
SMALLEST = 1e-3
"""Threshold whose unit serves smaller thresholds, because the unit of a threshold of 0 would be 0."""


def standard_units(thresholds: Tensor) -> Tensor:
    """Rate ``[K]`` per standard unit, sqrt(d (1 - d)): the deviation of one indicator at its threshold d.

    In u = 2 arcsin sqrt(rate), du = d(rate) / sqrt(rate (1 - rate)), and a rate measured on n answers has the
    deviation 1 / sqrt(n) whatever the rate. A constant unit per constraint, unlike u itself, keeps the mean of a noisy
    violation 0 where the mean rate meets the threshold.

    Example:
        >>> standard_units(torch.tensor([0.5, 0.1, 0.0]))
        tensor([0.5000, 0.3000, 0.0316])
    """
    d = thresholds.clamp(SMALLEST, 1 - SMALLEST)
    return (d * (1 - d)).sqrt()


def unit_of(bound: Bound) -> float:
    """The unit in which policies' violations are compared: `standard_units` of a rate, the size of a mean's bound."""
    if bound.of_mean:
        return abs(bound.target) or 1.0
    return standard_units(torch.tensor([bound.target], dtype=torch.float64)).item()


class RunningDeviation(nn.Module):
    """Standard deviations of K values within groups, pooled over groups and over updates with decaying weights.

    Args:
        size: K.
    """

    squares: Tensor
    freedom: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        for name in ("squares", "freedom"):
            self.register_buffer(name, torch.zeros(size, dtype=torch.float64))

    def update(self, squares: Tensor, freedom: Tensor) -> None:
        """Add an update's squares of deviations from group means, and degrees of freedom, ``[K]`` of all processes."""
        self.squares = MEMORY * self.squares.to(squares.device) + squares.to(self.squares.dtype)
        self.freedom = MEMORY * self.freedom.to(freedom.device) + freedom.to(self.freedom.dtype)

    @property
    def std(self) -> Tensor:
        """``[K]``, 0 where no two answers to a prompt ever differed."""
        return torch.where(self.squares > 0, self.squares / self.freedom, 0).sqrt()
