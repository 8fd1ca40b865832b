"""Exponentiated gradient: multiplicative steps as long as the violations."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lightning_cgrpo.errors import expect
from lightning_cgrpo.multipliers.controller import Controller


class ExponentiatedGradient(Controller):
    """z_k <- clip(z_k + lr clip(v_k, -clip, clip), -bound, bound), lambda = softmax(0, z_1 ... z_K).

    That is lambda_k <- lambda_k exp(lr v_k), renormalized (Kivinen & Warmuth, 1997: mirror ascent under the entropy).
    The reward's logit stays at 0. Unlike under gradient steps on the logits, no factor lambda_k (1 - lambda_k) starves
    a constraint whose weight is near 0 or 1, and no logit is pushed down while its constraint is violated.

    Reduces to plain exponentiated gradient with clip = bound = inf. With clip -> 0 at fixed lr * clip it sees the sign
    of a violation only.

    Args:
        lr: step per unit of violation.
        clip: largest violation that counts. Constraints violated by more rise equally fast, so that a hopeless one does
            not outrun those that can be met.
        bound: of |z_k|. A constraint weighs at most exp(bound) times the reward, and takes 2 bound / (lr clip) updates
            at most from one end to the other.
        init: of z_k; at 0, weights start uniform.
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
