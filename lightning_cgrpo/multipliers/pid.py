"""PID control of the multipliers."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lightning_cgrpo.core.errors import expect
from lightning_cgrpo.multipliers.controller import Controller


class PID(Controller):
    """Sets each multiplier from the size, the sum and the rise of its violation.

    The integral finds the multiplier; the proportional part damps oscillation; the derivative part responds to a
    rising violation.

        s <- a s + (1 - a) v,    s_0 = v_0
        I_k <- clip(I_k + ki v_k, 0, max_multiplier)
        lambda_k = clip(kp s_k + I_k + kd max(0, s_k - s'_k), 0, max_multiplier)

    with s' the previous s (Stooke et al., 2020, algorithm 2). The integral stops at the cap, so
    lambda_k leaves the cap as soon as the violation falls.

    Args:
        kp: proportional gain, lambda per unit of violation.
        ki: integral gain, lambda per unit of violation and update.
        kd: derivative gain, lambda per rise in one update; without smoothing, noise becomes a bias.
        max_multiplier: cap on lambda_k and on the integral, relative to the reward's 1.
        smoothing: a, in [0, 1). The authors' code has 0.95.
    """

    integral: Tensor
    smoothed: Tensor
    started: Tensor

    def __init__(
        self,
        kp: float = 1.0,
        ki: float = 0.05,
        kd: float = 0.0,
        max_multiplier: float = 5.0,
        smoothing: float = 0.0,
    ) -> None:
        super().__init__()
        expect(0 <= kp < math.inf, "kp", "non-negative", kp)
        expect(0 < ki < math.inf, "ki", "positive (without it rates don't settle at their thresholds)", ki)
        expect(0 <= kd < math.inf, "kd", "non-negative", kd)
        expect(0 < max_multiplier < math.inf, "max_multiplier", "positive and finite", max_multiplier)
        expect(0 <= smoothing < 1, "smoothing", "in [0, 1)", smoothing)
        self.kp = kp
        self.ki = ki
        self.kd = kd
        self.max_multiplier = max_multiplier
        self.smoothing = smoothing

    def _allocate(self, size: int) -> None:
        for name in ("multipliers", "integral", "smoothed"):
            self.register_buffer(name, torch.zeros(size, dtype=torch.float64))
        self.register_buffer("started", torch.zeros(size, dtype=torch.bool))

    def _update(self, violations: Tensor, observed: Tensor) -> None:
        # Smooth the violations; the first violation begins the average.
        previous = torch.where(self.started, self.smoothed, violations)
        smoothed = self.smoothing * previous + (1 - self.smoothing) * violations
        # The proportional and the derivative part respond at once.
        immediate = self.kp * smoothed + self.kd * (smoothed - previous).clamp(min=0)
        # The integral rises at most to where the multiplier reaches its cap.
        integral = (self.integral + self.ki * violations).clamp(0, self.max_multiplier)
        highest = torch.maximum(self.integral, self.max_multiplier - immediate)
        integral = torch.minimum(integral, highest)
        multipliers = (immediate + integral).clamp(0, self.max_multiplier)
        # An unobserved constraint keeps its state.
        self.multipliers = torch.where(observed, multipliers, self.multipliers)
        self.integral = torch.where(observed, integral, self.integral)
        self.smoothed = torch.where(observed, smoothed, self.smoothed)
        self.started = self.started | observed
