"""nuPI: proportional-integral control in recursive form."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lightning_cgrpo.core.errors import expect
from lightning_cgrpo.multipliers.controller import Controller


class NuPI(Controller):
    """Moves each multiplier by its violation and by the smoothed violation's change, which damps oscillation.

        s_t = nu s_{t-1} + (1 - nu) v_t,    s_0 = v_0
        lambda <- clip(lambda + ki v_t + kp (s_t - s_{t-1}), 0, max_multiplier)

    (Sohrabi et al., 2024, algorithm 1.) With nu = 0 and kp = ki this is optimistic gradient ascent. The authors'
    library stores s_0 = 0 instead.

    Args:
        kp: proportional gain, lambda per unit of violation.
        ki: integral gain per update; the dual learning rate.
        nu: smoothing, in (-1, 1); negative values oscillate like momentum.
        max_multiplier: cap on each lambda_k, relative to the reward's 1.
        init: initial lambda_k.
    """

    smoothed: Tensor
    started: Tensor

    def __init__(
        self,
        kp: float = 1.0,
        ki: float = 0.05,
        nu: float = 0.0,
        max_multiplier: float = 5.0,
        init: float = 0.0,
    ) -> None:
        super().__init__()
        expect(0 <= kp < math.inf, "kp", "non-negative", kp)
        expect(0 < ki < math.inf, "ki", "positive (without it rates don't settle at their thresholds)", ki)
        expect(-1 < nu < 1, "nu", "in (-1, 1)", nu)
        expect(0 < max_multiplier < math.inf, "max_multiplier", "positive and finite", max_multiplier)
        expect(0 <= init <= max_multiplier, "init", f"between 0 and max_multiplier, {max_multiplier}", init)
        self.kp, self.ki, self.nu = kp, ki, nu
        self.max_multiplier, self.init = max_multiplier, init

    def _allocate(self, size: int) -> None:
        self.register_buffer("multipliers", torch.full((size,), self.init, dtype=torch.float64))
        self.register_buffer("smoothed", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("started", torch.zeros(size, dtype=torch.bool))

    def _update(self, violations: Tensor, observed: Tensor) -> None:
        previous = torch.where(self.started, self.smoothed, violations)
        smoothed = self.nu * previous + (1 - self.nu) * violations
        moved = self.multipliers + self.ki * violations + self.kp * (smoothed - previous)

        self.multipliers = torch.where(observed, moved.clamp(0, self.max_multiplier), self.multipliers)
        self.smoothed = torch.where(observed, smoothed, self.smoothed)
        self.started = self.started | observed
