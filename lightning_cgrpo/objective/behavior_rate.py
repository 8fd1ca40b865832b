"""A torchmetrics accumulator of rates and means, for the controller."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric


class BehaviorRate(Metric):
    """Pooled rates of K = `size` behaviors: sum of violations / sum of opportunities, over batches and processes.

    Counts are float64: sums up to 2^53 are exact, so all processes compute identical rates.

    Args:
        size: K.
        means: which behaviors are means, whose "violations" are sums of any sign and size; by default none.

    Example:
        >>> rate = BehaviorRate(2)
        >>> rate.update(torch.tensor([1.0, 0.0]), torch.tensor([4.0, 1.0]))
        >>> rate.update(torch.tensor([2.0, 0.0]), torch.tensor([2.0, 3.0]))
        >>> rate.compute()
        tensor([0.5000, 0.0000], dtype=torch.float64)
    """

    full_state_update = False
    violations: Tensor
    opportunities: Tensor

    def __init__(self, size: int, means: Sequence[bool] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.means = torch.tensor([False] * size if means is None else list(means), dtype=torch.bool)
        for state in ("violations", "opportunities"):
            self.add_state(state, torch.zeros(size, dtype=torch.float64), dist_reduce_fx="sum", persistent=True)

    def update(self, violations: Tensor, opportunities: Tensor) -> None:
        violations, opportunities = violations.to(self.violations), opportunities.to(self.opportunities)
        sums = self.means.to(violations.device) & violations.isfinite() & (opportunities >= 0)
        # The negation catches NaN too.
        if not bool((((violations >= 0) & (violations <= opportunities) | sums) & opportunities.isfinite()).all()):
            raise ValueError(
                "Expected counts with 0 <= violations <= opportunities, all finite, but got "
                f"{violations.tolist()} of {opportunities.tolist()}."
            )
        # Not in place, because `load_state_dict` keeps the checkpoint's own tensors.
        self.violations = self.violations + violations
        self.opportunities = self.opportunities + opportunities

    def compute(self) -> Tensor:
        """Rates ``[K]`` float64, NaN without opportunities; a scalar for K = 1."""
        return self.violations / self.opportunities
