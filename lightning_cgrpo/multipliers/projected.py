"""Projected gradient ascent on the multipliers."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lightning_cgrpo.core.errors import expect
from lightning_cgrpo.multipliers.controller import Controller


class ProjectedAscent(Controller):
    """Moves each multiplier in proportion to its violation, down to 0.

        lambda_k <- clip(lambda_k + lr v_k, 0, max_multiplier)

    This is dual ascent (Arrow, Hurwicz & Uzawa, 1958). lambda is 0 at first, so training starts as plain GRPO.

    Args:
        lr: step per unit of violation.
        max_multiplier: cap on each lambda_k, relative to the reward's 1.
    """

    def __init__(self, lr: float = 0.05, max_multiplier: float = 5.0) -> None:
        super().__init__()
        expect(0 < lr < math.inf, "lr", "positive", lr)
        expect(0 < max_multiplier < math.inf, "max_multiplier", "positive and finite", max_multiplier)
        self.lr = lr
        self.max_multiplier = max_multiplier

    def _allocate(self, size: int) -> None:
        self.register_buffer("multipliers", torch.zeros(size, dtype=torch.float64))

    def _update(self, violations: Tensor, observed: Tensor) -> None:
        # An unobserved constraint keeps its multiplier.
        moved = (self.multipliers + self.lr * violations).clamp(0, self.max_multiplier)
        self.multipliers = torch.where(observed, moved, self.multipliers)
