"""The default controller: dual ascent in standard units, damped by a proportional term."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lightning_cgrpo.errors import expect
from lightning_cgrpo.multipliers.controller import Controller


class DampedAscent(Controller):
    """Moves each multiplier by its violation in standard units, and by the smoothed violation's change.

        v_k = (rate_k - d_k) / sqrt(d_k (1 - d_k)),    s <- a s + (1 - a) v,    s_0 = v_0
        lambda_k = clip(gain s_k + I_k, 0, max_multiplier),    I_k <- clip(I_k + (gain / time) v_k, ...)

    The integral I finds the multiplier; the proportional part damps oscillation and responds at once. I stops while
    lambda_k is at its cap and the rate above its threshold, so lambda_k leaves the cap without delay. At the other bound
    I goes on down to 0: if I stopped where lambda_k is 0, rates would end below their thresholds. The cap keeps the
    reward and the other constraints if a threshold can't be met.

    One setting serves all thresholds and tasks, because the policy's response and a rate's noise don't depend on the
    threshold in standard units; docs/method.md has the derivation. Never tuned per task.

    Reduces to projected ascent in standard units for gain -> 0 at constant gain / time, and to PI control
    (Stooke et al., 2020, without the derivative).

    Args:
        gain: lambda per standard unit of violation.
        time: updates in which the integral adds as much as the proportional part.
        smoothing: a, in [0, 1).
        max_multiplier: cap on lambda_k and on I_k, relative to the reward's 1.
        init: initial I_k; 1 starts from uniform weights.
    """

    standard_units = True

    integral: Tensor
    smoothed: Tensor
    started: Tensor

    def __init__(
        self,
        gain: float = 10.0,
        time: float = 30.0,
        smoothing: float = 0.5,
        max_multiplier: float = 10.0,
        init: float = 1.0,
    ) -> None:
        super().__init__()
        expect(0 < gain < math.inf, "gain", "positive", gain)
        expect(0 < time < math.inf, "time", "positive", time)
        expect(0 <= smoothing < 1, "smoothing", "in [0, 1)", smoothing)
        expect(0 < max_multiplier < math.inf, "max_multiplier", "positive and finite", max_multiplier)
        expect(0 <= init <= max_multiplier, "init", f"between 0 and max_multiplier, {max_multiplier}", init)
        self.gain, self.time, self.smoothing = gain, time, smoothing
        self.max_multiplier, self.init = max_multiplier, init

    def _allocate(self, size: int) -> None:
        for name, value in (("multipliers", self.init), ("integral", self.init), ("smoothed", 0.0)):
            self.register_buffer(name, torch.full((size,), value, dtype=torch.float64))
        self.register_buffer("started", torch.zeros(size, dtype=torch.bool))

    def _update(self, violations: Tensor, observed: Tensor) -> None:
        previous = torch.where(self.started, self.smoothed, violations)
        smoothed = self.smoothing * previous + (1 - self.smoothing) * violations
        beyond = (self.gain * smoothed + self.integral >= self.max_multiplier) & (violations > 0)
        moved = (self.integral + self.gain / self.time * violations).clamp(0, self.max_multiplier)
        integral = torch.where(beyond, self.integral, moved)
        multipliers = (self.gain * smoothed + integral).clamp(0, self.max_multiplier)

        self.multipliers = torch.where(observed, multipliers, self.multipliers)
        self.integral = torch.where(observed, integral, self.integral)
        self.smoothed = torch.where(observed, smoothed, self.smoothed)
        self.started = self.started | observed
