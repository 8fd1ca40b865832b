"""The default controller: damped ascent of the multipliers' logarithms, in standard units."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lightning_cgrpo.core.errors import expect
from lightning_cgrpo.multipliers.controller import Controller, normalized_weights

TOTAL = 5.0
"""Largest sum of the multipliers at first, relative to the reward's 1."""
FAR = 0.5
"""Violation in standard units beyond which a constraint is far from its threshold."""
FAR_SHARE = 0.2
"""Least share of the bound of the sum that a far constraint's multiplier can have: at first as much as the reward."""
FALL = 0.25
"""Speed at which the bound of the sum falls, relative to its rise."""
SMOOTHING = 0.7
"""The share a that a smoothed violation keeps of its past: single updates are noise, and ten are late."""
TREND = 0.9
"""The share b that the slower average keeps, from which the smoothed violation's change is measured."""
AHEAD = 10.0
"""Updates by which the proportional part looks ahead: about as late as Adam's momentum of 0.9 follows a weight."""
LOSS = 1.0
"""Loss of an integral that is not returned, because noise of a rate at its threshold has it."""
ROUNDING = 1e-9
"""Relative tolerance of a multiplier at its cap."""


class DampedAscent(Controller):
    """Moves each multiplier's logarithm by its violation in standard units, and by that foreseen ten updates ahead.

        v_k = (rate_k - d_k) / sqrt(d_k (1 - d_k)),    s <- a s + (1 - a) v,    s_0 = v_0
        f_k = s_k + 10 times the change of s_k in an update
        p_k = min(1, max(-1, gain f_k))
        log lambda_k = p_k + max(p_k, 0) + I_k,    I_k <- I_k + (gain / time) s_k

    with lambda and exp(I) between `min_multiplier` and cap. The integral I finds the multiplier. The proportional part
    damps oscillation and responds at once: slack divides the multiplier by e at most, a violation multiplies it by e^2
    at most. It looks ahead, because a policy follows a weight late. I stops where the multiplier would be pushed beyond
    its bounds. When a constraint that was met is violated again, half of what I lost in between, beyond 1, returns: a
    policy that jumps between kinds of answers would otherwise find the multiplier too low each time.

    The reward keeps a share. The multipliers are scaled together to a sum of at most S, and each is at most S:

        w = (1, lambda') / (1 + sum lambda'),    lambda' = lambda min(1, S / sum(lambda / f))
        f_k = max(0.2, min(1, 0.5 / s_k)),    lambda_k <= min(f_k S, max_multiplier)

    S is 5 at first. It doubles in `time` updates in which it holds back a violated constraint, up to 5 K times
    `max_multiplier`, and falls at a quarter of this speed while all are met. A constraint that is violated by more than
    half of a standard unit is far from its threshold. It can have the share f of S, and S rises at f of its speed,
    because a policy that is far away needs time rather than weight. So a threshold far from the start begins with as
    much weight as the reward. With five times the reward's weight, a language model would unlearn the reward for good,
    because it is never paid for answers that it no longer samples. A stalled, likely infeasible constraint is held at
    the rate that it reached (`Dual.detect_stall`), and its cap is halved.

    One setting serves all thresholds and tasks. In standard units, the policy's response and a rate's noise don't
    depend on the threshold. Noise changes a multiplier by a share of itself, so it neither drowns a small multiplier
    nor is clipped at 0, and mean rates settle at their thresholds; docs/default_controller.md has the reasons.

    Reduces to the exponentiated gradient in standard units (Kivinen & Warmuth, 1997) for gain -> 0 at constant
    gain / time, a = 0 and S = infinity. Without S and the doubling, it is PI control of log lambda (Stooke et al.,
    2020, control lambda); looking ahead is their derivative part.

    Args:
        gain: fall of log lambda per standard unit of slack; a violation counts twice.
        time: updates in which the integral moves as much as slack does at once.
        min_multiplier: least lambda_k, from which a multiplier returns; a constraint with slack keeps this weight.
        max_multiplier: cap on lambda_k, relative to the reward's 1.
        init: initial lambda_k; 1 starts from uniform weights.
        margin: standard errors, see `Controller.margin`.
    """

    standard_units = True

    integral: Tensor
    smoothed: Tensor
    slower: Tensor
    met: Tensor
    started: Tensor
    held: Tensor
    total: Tensor

    def __init__(
        self,
        gain: float = 5.0,
        time: float = 60.0,
        min_multiplier: float = 0.01,
        max_multiplier: float = 10.0,
        init: float = 1.0,
        margin: float = 1.0,
    ) -> None:
        super().__init__()
        expect(0 < gain < math.inf, "gain", "positive", gain)
        expect(0 < time < math.inf, "time", "positive", time)
        expect(0 < max_multiplier < math.inf, "max_multiplier", "positive and finite", max_multiplier)
        expect(
            0 < min_multiplier <= max_multiplier,
            "min_multiplier",
            f"positive and at most max_multiplier, {max_multiplier}",
            min_multiplier,
        )
        expect(
            min_multiplier <= init <= max_multiplier,
            "init",
            f"between min_multiplier and max_multiplier, {min_multiplier} and {max_multiplier}",
            init,
        )
        expect(0 <= margin < math.inf, "margin", "at least 0 and finite", margin)
        self.gain = gain
        self.time = time
        self.min_multiplier = min_multiplier
        self.max_multiplier = max_multiplier
        self.init = init
        self.margin = margin

    def _allocate(self, size: int) -> None:
        self.register_buffer("multipliers", torch.full((size,), self.init, dtype=torch.float64))
        # `met` is the integral when a constraint that was violated was last met.
        for name in ("integral", "met"):
            self.register_buffer(name, torch.full((size,), math.log(self.init), dtype=torch.float64))
        for name in ("smoothed", "slower"):
            self.register_buffer(name, torch.zeros(size, dtype=torch.float64))
        for name in ("started", "held"):
            self.register_buffer(name, torch.zeros(size, dtype=torch.bool))
        self.register_buffer("total", torch.tensor(TOTAL, dtype=torch.float64))

    @property
    def weights(self) -> Tensor:
        # Scale all multipliers down together, if their sum exceeds its bound. A far constraint counts more in the sum.
        sum_by_share = (self.multipliers / self.shares).sum()
        scale = (self.total / sum_by_share).clamp(max=1)
        return normalized_weights(self.multipliers * scale)

    @property
    def shares(self) -> Tensor:
        """Shares ``[K]`` of the bound of the sum that the multipliers can have: 1, and less far from a threshold."""
        return (FAR / self.smoothed.clamp(min=FAR)).clamp(min=FAR_SHARE)

    @property
    def caps(self) -> Tensor:
        caps = (self.total * self.shares).clamp(max=self.max_multiplier)
        return torch.where(self.held, caps / 2, caps)

    def hold(self, k: int) -> bool:
        # In new tensors, because a state may share the old ones.
        self.held = self.held.clone()
        self.integral = self.integral.clone()
        # The constraint begins anew: its cap is halved, its multiplier at most 1, and the bound of the sum the first.
        self.held[k] = True
        self.integral[k] = min(0.0, float(self.integral[k]))
        self.total = torch.full_like(self.total, TOTAL)
        return True

    def release(self, k: int) -> None:
        self.held = self.held.clone()
        self.held[k] = False

    def _update(self, violations: Tensor, observed: Tensor) -> None:
        # Smooth the violations. An unobserved constraint keeps its state.
        was_violated = self.started & (self.smoothed > 0)
        self.smoothed = self._running_average(self.smoothed, SMOOTHING, violations, observed)
        self.slower = self._running_average(self.slower, TREND, violations, observed)
        self.started = self.started | observed
        self._return_lost(was_violated)
        # Bounds of the multipliers' logarithms.
        low = math.log(self.min_multiplier)
        high = self.caps.log()
        # Respond at once to what is foreseen, to a violation twice as much as to slack.
        proportional = (self.gain * self.foreseen).clamp(-1, 1)
        proportional = proportional + proportional.clamp(min=0)
        # Move the integrals, unless that would push a multiplier further beyond its bounds.
        log_multipliers = proportional + self.integral
        pushed_above = (log_multipliers >= high) & (self.smoothed > 0)
        pushed_below = (log_multipliers <= low) & (self.smoothed < 0)
        moved = torch.minimum(self.integral + self.gain / self.time * self.smoothed, high).clamp(min=low)
        integral = torch.where(pushed_above | pushed_below, self.integral, moved)
        # The multipliers follow both parts, within their bounds.
        multipliers = torch.minimum(proportional + integral, high).clamp(min=low).exp()
        self.integral = torch.where(observed, integral, self.integral)
        self.multipliers = torch.where(observed, multipliers, self.multipliers)
        self._bound_total()

    def _running_average(self, average: Tensor, kept: float, violations: Tensor, observed: Tensor) -> Tensor:
        """An exponential average ``[K]`` that begins with the first violation."""
        previous = torch.where(self.started, average, violations)
        return torch.where(observed, kept * previous + (1 - kept) * violations, average)

    @property
    def foreseen(self) -> Tensor:
        """Violations ``[K]`` as they will be in `AHEAD` updates, if they go on changing as now."""
        # If violations change steadily, the slower average is this many updates behind the smoothed one.
        lag = TREND / (1 - TREND) - SMOOTHING / (1 - SMOOTHING)
        return self.smoothed + AHEAD * (self.smoothed - self.slower) / lag

    def _return_lost(self, was_violated: Tensor) -> None:
        """Return half of what an integral lost since its constraint was met, beyond `LOSS`, if it is violated again."""
        violated = self.smoothed > 0
        # Note the integral of a constraint that has just been met.
        newly_met = was_violated & ~violated
        self.met = torch.where(newly_met, self.integral, self.met)
        # Return the loss of a constraint that is violated again.
        violated_again = ~was_violated & violated
        lost = (self.met - self.integral - LOSS).clamp(min=0)
        self.integral = torch.where(violated_again, self.integral + lost / 2, self.integral)

    def _bound_total(self) -> None:
        """Raise the bound of the sum while it holds back a violated constraint, and lower it while all are met."""
        violated = self.smoothed > 0
        at_cap = self.multipliers >= self.caps * (1 - ROUNDING)
        held_back = violated & at_cap
        step = self.total.new_tensor(2.0) ** (1 / self.time)  # infinite for a time near 0
        if bool(held_back.any()):
            # The constraint nearest to its threshold decides, because weight helps it most.
            speed = self.shares[held_back].max()
            largest_total = max(TOTAL, self.max_multiplier * len(self.multipliers) / FAR_SHARE)
            self.total = (self.total * step**speed).clamp(max=largest_total)
        elif not bool(violated.any()):
            self.total = (self.total / step**FALL).clamp(min=TOTAL)
