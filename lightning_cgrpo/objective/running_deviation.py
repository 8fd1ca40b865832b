"""A moving estimate of how much the answers to one prompt differ."""

from __future__ import annotations

import torch
from torch import Tensor, nn

MEMORY = 0.95
"""Weight of the past per update: the estimate covers about the last 20 updates."""


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
