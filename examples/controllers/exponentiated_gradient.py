"""Exponentiated gradient on the multipliers."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lightning_cgrpo.core.errors import expect
from lightning_cgrpo.multipliers.controller import Controller


class ExponentiatedGradient(Controller):
    """Multiplies each constraint's weight by a factor that grows with its violation, then renormalizes.

    Clipped steps keep an infeasible constraint from outrunning other constraints; bounded logits keep weights positive.

        z_k <- clip(z_k + lr clip(v_k, -clip, clip), -bound, bound),    lambda = softmax(0, z_1 ... z_K)

    Without the clips: lambda_k <- lambda_k exp(lr v_k), renormalized (Kivinen & Warmuth, 1997).

    Args:
        lr: step per unit of violation.
        clip: largest violation that counts.
        bound: largest |z_k|; weights reach exp(bound) times the reward's.
        init: initial z_k; 0 for uniform weights.
    """

    logits: Tensor

    def __init__(self, lr: float = 0.2, clip: float = 0.05, bound: float = 5.0, init: float = 0.0) -> None:
        super().__init__()
        expect(0 < lr < math.inf, "lr", "positive", lr)
        expect(clip > 0, "clip", "positive", clip)
        expect(bound > 0, "bound", "positive", bound)
        expect(math.isfinite(init) and abs(init) <= bound, "init", f"between -bound and bound, {bound}", init)
        self.lr, self.clip, self.bound, self.init = lr, clip, bound, init

    @property
    def weights(self) -> Tensor:
        return torch.softmax(torch.cat([self.logits.new_zeros(1), self.logits]), dim=0)

    def _allocate(self, size: int) -> None:
        self.register_buffer("logits", torch.full((size,), self.init, dtype=torch.float64))

    def _update(self, violations: Tensor, observed: Tensor) -> None:
        moved = self.logits + self.lr * violations.clamp(-self.clip, self.clip)
        self.logits = torch.where(observed, moved.clamp(-self.bound, self.bound), self.logits)
