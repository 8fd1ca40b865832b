"""nuPI: proportional-integral control in recursive form."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lightning_cgrpo.errors import expect
from lightning_cgrpo.multipliers.controller import Controller, normalized


class NuPI(Controller):
    """lambda <- clip(lambda + ki v_t + kp (s_t - s_{t-1}), 0, max_multiplier) (Sohrabi et al., 2024, algorithm 1).

    s_t = nu s_{t-1} + (1 - nu) v_t, and s_0 = v_0: the first step is lambda + ki v_0. (Their library's dense update
    documents s_0 = v_0 but stores 0, which repeats the proportional term in the second step.) Weights are
    (1, lambda) / (1 + sum lambda). The proportional term answers the change of a violation and so damps oscillation.
    Unlike in PID, what the projection cuts off is forgotten: there is no integral that could wind up.

    Reduces to ProjectedAscent(lr=ki) with kp = 0, bit for bit; with nu = 0 and kp = ki to optimistic gradient ascent,
    lambda + ki (2 v_t - v_{t-1}); before it meets a bound, to PID(kp, ki, smoothing=nu) less the constant kp v_0.

    Args:
        kp: proportional gain, lambda per unit of violation.
        ki: integral gain, lambda per unit of violation and update; the dual learning rate.
        nu: smoothing of the violation in the proportional term, in (-1, 1); negative values, which the authors allow,
            come close to Nesterov's momentum, and momentum is what makes multipliers oscillate.
        max_multiplier: cap on each lambda_k, relative to the reward's 1.
        init: of each lambda_k.
    """

    multipliers: Tensor
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

    @property
    def weights(self) -> Tensor:
        return normalized(self.multipliers)

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
