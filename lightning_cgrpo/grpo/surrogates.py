"""What is maximized at a step: functions of its advantage, and of the ratio of the policy to the one that sampled."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor


class Surrogate(ABC):
    """The part of the loss that sees advantages; KL and entropy are added to it.

    At ratio 1 its gradient is the policy gradient, advantage times the gradient of the log-probability.
    """

    @abstractmethod
    def __call__(self, log_ratio: Tensor, advantages: Tensor) -> tuple[Tensor, Tensor]:
        """Value and bound of every step, larger values being better.

        Args:
            log_ratio: ``[...]`` log-probability minus that under the policy that sampled, differentiable.
            advantages: ``[...]``.

        Returns:
            The value ``[...]``, and ``[...]`` bool, at which steps a bound of the ratio acts (`policy/clip_fraction`).
        """


class Clipped(Surrogate):
    """PPO's (Schulman et al., 2017), GRPO's and the default: min(r A, clip(r, 1 - low, 1 + high) A).

    - high > low is clip-higher (DAPO, Yu et al., 2025), which leaves unlikely tokens more room to become likely.
    - With `limit` it is two-sided (INTELLECT-2, 2025): min(min(r, limit) A, clip(r, 1 - low, 1 + high) A). Otherwise
      nothing bounds the ratio of a step that is to become less likely.

    Args:
        low: how far the ratio may fall below 1.
        high: how far it may rise above 1.
        limit: of the ratio (not of its distance from 1) where the advantage is negative; None for none.
    """

    def __init__(self, low: float = 0.2, high: float = 0.2, limit: float | None = None) -> None:
        self.low, self.high, self.limit = low, high, limit

    def __call__(self, log_ratio: Tensor, advantages: Tensor) -> tuple[Tensor, Tensor]:
        ratio = log_ratio.exp()
        clipped = ratio.clamp(1 - self.low, 1 + self.high)
        limited = ratio if self.limit is None else ratio.clamp(max=self.limit)
        value = torch.minimum(limited * advantages, clipped * advantages)
        # Where the value no longer follows the ratio.
        bounded = clipped * advantages < ratio * advantages
        if self.limit is not None:
            bounded |= (ratio > self.limit) & (advantages < 0)
        return value, bounded


class CISPO(Surrogate):
    """Clips the weight of a step rather than its gradient: sg[min(r, cap)] A log r (MiniMax-M1, 2025).

    sg[x] is x without its gradient. Every step keeps one, however far the policy has moved. (The original has log pi
    in the place of log r: the same gradient, and a value that is 0 before the first step.)

    Args:
        cap: largest weight; 5 in ScaleRL (Khatri et al., 2025).
    """

    def __init__(self, cap: float = 5.0) -> None:
        if not cap >= 1:
            raise ValueError(f"Expected argument `cap` to be at least 1, but got {cap}.")
        self.cap = cap

    def __call__(self, log_ratio: Tensor, advantages: Tensor) -> tuple[Tensor, Tensor]:
        weight = log_ratio.detach().exp()
        return weight.clamp(max=self.cap) * advantages * log_ratio, weight > self.cap


class SAPO(Surrogate):
    """A soft gate in the place of clipping: 4 sigmoid(t (r - 1)) / t A (Gao et al., 2025).

    Its gradient, r sech^2(t (r - 1) / 2) A, fades as the ratio leaves 1. No bound acts.

    Args:
        temperature: t where the advantage is positive; the larger, the sooner the gradient fades.
        negative_temperature: t elsewhere.
    """

    def __init__(self, temperature: float = 1.0, negative_temperature: float = 1.05) -> None:
        for name, value in (("temperature", temperature), ("negative_temperature", negative_temperature)):
            if not value > 0:
                raise ValueError(f"Expected argument `{name}` to be greater than 0, but got {value}.")
        self.temperature, self.negative_temperature = temperature, negative_temperature

    def __call__(self, log_ratio: Tensor, advantages: Tensor) -> tuple[Tensor, Tensor]:
        choices = advantages.new_tensor([self.negative_temperature, self.temperature])
        temperature = choices[(advantages > 0).long()]
        gate = (temperature * (log_ratio.exp() - 1)).sigmoid() * 4 / temperature
        return gate * advantages, torch.zeros_like(advantages, dtype=torch.bool)
