"""Per-step surrogate objectives: clipped, CISPO, SAPO."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from lightning_cgrpo.core.errors import expect
from lightning_cgrpo.settings.objects import Stated


class Surrogate(Stated, ABC):
    """Surrogate objective of a step, maximized. Its gradient at ratio 1 is the policy gradient."""

    @abstractmethod
    def __call__(self, log_ratio: Tensor, advantages: Tensor) -> tuple[Tensor, Tensor]:
        """The value ``[...]``, and the steps ``[...]`` bool at which a bound of the ratio acts.

        Args:
            log_ratio: ``[...]`` log-probability minus log-probability under the sampling policy.
        """


class Clipped(Surrogate):
    """PPO's and GRPO's surrogate (Schulman et al., 2017), the default: min(r A, clip(r, 1 - low, 1 + high) A).

    high > low is clip-higher (DAPO, Yu et al., 2025). With `limit` (two-sided clipping, INTELLECT-2, 2025) r A becomes
    min(r, limit) A.

    Args:
        limit: largest ratio for negative advantages.
    """

    def __init__(self, low: float = 0.2, high: float = 0.2, limit: float | None = None) -> None:
        self.low = low
        self.high = high
        self.limit = limit

    def __call__(self, log_ratio: Tensor, advantages: Tensor) -> tuple[Tensor, Tensor]:
        ratio = log_ratio.exp()
        clipped = ratio.clamp(1 - self.low, 1 + self.high)
        # The lower of both objectives: a step gains nothing from a ratio beyond the bounds.
        limited = ratio if self.limit is None else ratio.clamp(max=self.limit)
        value = torch.minimum(limited * advantages, clipped * advantages)
        # A bound acts where the value no longer follows the ratio.
        bounded = clipped * advantages < ratio * advantages
        if self.limit is not None:
            bounded |= (ratio > self.limit) & (advantages < 0)
        return value, bounded


class CISPO(Surrogate):
    """Clips a step's weight, not its gradient: sg[min(r, cap)] A log r (MiniMax-M1, 2025); sg stops the gradient.

    Args:
        cap: largest weight; 5 in ScaleRL (Khatri et al., 2025).
    """

    def __init__(self, cap: float = 5.0) -> None:
        expect(cap >= 1, "cap", "at least 1", cap)
        self.cap = cap

    def __call__(self, log_ratio: Tensor, advantages: Tensor) -> tuple[Tensor, Tensor]:
        # Without a gradient, the ratio is a constant weight of the log-probability.
        weight = log_ratio.detach().exp()
        value = weight.clamp(max=self.cap) * advantages * log_ratio
        return value, weight > self.cap


class SAPO(Surrogate):
    """A soft gate instead of clipping: (4 / t) sigmoid(t (r - 1)) A (Gao et al., 2025).

    The gradient by log r, r sech^2(t (r - 1) / 2) A, fades as the ratio leaves 1. No bound acts.

    Args:
        temperature: t for positive advantages; larger values fade the gradient sooner.
        negative_temperature: t for other advantages.
    """

    def __init__(self, temperature: float = 1.0, negative_temperature: float = 1.05) -> None:
        expect(temperature > 0, "temperature", "greater than 0", temperature)
        expect(negative_temperature > 0, "negative_temperature", "greater than 0", negative_temperature)
        self.temperature = temperature
        self.negative_temperature = negative_temperature

    def __call__(self, log_ratio: Tensor, advantages: Tensor) -> tuple[Tensor, Tensor]:
        # The temperature of each step, by the sign of its advantage.
        choices = advantages.new_tensor([self.negative_temperature, self.temperature])
        temperature = choices[(advantages > 0).long()]
        gate = (temperature * (log_ratio.exp() - 1)).sigmoid() * 4 / temperature
        unbounded = torch.zeros_like(advantages, dtype=torch.bool)
        return gate * advantages, unbounded
