"""Base class of samplers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Protocol

from torch import Tensor

from lightning_cgrpo.core.prompts.source import PromptSource
from lightning_cgrpo.core.rollout import PromptGroups, Rollouts, Signal
from lightning_cgrpo.objective.signals import SignalKind
from lightning_cgrpo.settings.objects import Stated


class Noise(Protocol):
    """Uniform numbers in [0, 1), float64 ``[B, *shape]``: the only randomness of a rollout.

    Draw once per rollout, because every call repeats the numbers.
    """

    def __call__(self, *shape: int) -> Tensor: ...


class Sampler(Stated, ABC):
    """Answers every prompt G times.

    Attributes:
        longest: steps or tokens of the longest answer; None for no limit.
        signals: names and kinds of the signals that `measured` returns.
        reads_weights: rollouts call passes of the policy, so that a sharded policy is gathered for them.
        memory: most bytes of answers at once, see `RolloutEngine`; None for no limit. Checkpoints keep it.
    """

    reads_weights: bool = True
    longest: int | None = None
    memory: int | None = None
    signals: Mapping[str, SignalKind] = MappingProxyType({})

    def check_policy(self, policy: Any) -> None:
        """Raise a `UserError` unless the sampler can use the policy; called before its weights are loaded."""

    @abstractmethod
    def rollout(self, policy: Any, prompts: PromptGroups, group_size: int, noise: Noise) -> Rollouts:
        """Sample ``[B, G]`` answers, without gradients and with the policy in eval mode."""

    def measured(self, rollouts: Rollouts) -> dict[str, Signal]:
        """Signals of what happened in the sampler's own rollouts, besides the task's signals."""
        return {}

    def release(self, policy: Any) -> None:
        """Give back memory that training needs; called before each update's training passes. Collective."""

    def check(self, policy: Any, source: PromptSource) -> None:
        """Raise a `UserError` unless all prompts can be answered; called before training."""
