"""A torchmetrics accumulator of rates and means, for the controller."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

ENOUGH = 30.0
"""Opportunities of a rare behavior with which its rate moves a multiplier; with fewer, multipliers clip too often."""


class BehaviorRate(Metric):
    """Pooled rates of K = `size` behaviors: sum of violations / sum of opportunities, over batches and processes.

    Counts are float64: sums up to 2^53 are exact, so all processes compute identical rates. A mean is pooled likewise,
    from sums of any sign.

    Args:
        rare: which of the K behaviors keep their counts until there are `ENOUGH`.

    Example:
        >>> rate = BehaviorRate([False, False])
        >>> rate.update(torch.tensor([1.0, 0.0]), torch.tensor([4.0, 1.0]))
        >>> rate.update(torch.tensor([2.0, 0.0]), torch.tensor([2.0, 3.0]))
        >>> rate.compute()
        tensor([0.5000, 0.0000], dtype=torch.float64)
    """

    full_state_update = False
    violations: Tensor
    opportunities: Tensor

    def __init__(self, rare: Sequence[bool], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rare = torch.tensor(rare, dtype=torch.bool)
        for state in ("violations", "opportunities"):
            self.add_state(state, torch.zeros(len(rare), dtype=torch.float64), dist_reduce_fx="sum", persistent=True)

    def update(self, violations: Tensor, opportunities: Tensor) -> None:
        # Not in place, because `load_state_dict` keeps the checkpoint's own tensors.
        self.violations = self.violations + violations.to(self.violations)
        self.opportunities = self.opportunities + opportunities.to(self.opportunities)

    def compute(self) -> Tensor:
        """Rates ``[K]`` float64, NaN without opportunities; a scalar for K = 1."""
        return self.violations / self.opportunities

    def take(self) -> Tensor:
        """Violations and opportunities ``[2, K]``, which start again at 0; of rare behaviors 0 until there are enough.

        Example:
            >>> rate = BehaviorRate([False, True])
            >>> rate.update(torch.tensor([1.0, 2.0]), torch.tensor([4.0, 20.0]))
            >>> rate.take().tolist(), rate.opportunities.tolist()
            ([[1.0, 0.0], [4.0, 0.0]], [0.0, 20.0])
        """
        counts = torch.stack([self.violations, self.opportunities])  # [2, K]
        pending = self.rare.to(counts.device) & (self.opportunities < ENOUGH)
        # Keep the counts that are pending, and return the others.
        self.reset()
        self.violations, self.opportunities = torch.where(pending, counts, 0).unbind()
        return torch.where(pending, 0, counts)
