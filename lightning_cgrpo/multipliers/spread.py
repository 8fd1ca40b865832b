"""A moving estimate of how much answers to one prompt differ, the standard unit of a mean."""

from __future__ import annotations

import torch
from torch import Tensor, nn

MEMORY = 0.95
"""Weight of the past per update: the estimate covers about the last 20 updates."""
LARGEST = 10.0
"""Largest violation of a mean in standard units, because a policy whose answers all agree has a unit near 0."""


class Spread(nn.Module):
    """Standard deviations of K signals within groups, pooled over groups and over updates with decaying weights.

    A standardized advantage moves the mean of a signal in proportion to the signal's deviation within groups, so this
    deviation is to a mean what `standard_units` are to a rate.

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
        """Add an update's `Objective.spread`, both ``[K]``, summed over processes."""
        self.squares = MEMORY * self.squares + squares.to(self.squares)
        self.freedom = MEMORY * self.freedom + freedom.to(self.freedom)

    @property
    def units(self) -> Tensor:
        """``[K]``, NaN where no two answers to a prompt ever differed."""
        return torch.where(self.squares > 0, (self.squares / self.freedom).sqrt(), torch.nan)

    def standardized(self, violations: Tensor, means: Tensor) -> Tensor:
        """Violations ``[K]``, with those of `means` ``[K]`` bool in standard units."""
        return torch.where(means, (violations / self.units.to(violations)).clamp(-LARGEST, LARGEST), violations)
