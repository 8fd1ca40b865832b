"""How a policy answers prompts: an environment stepped by the policy, or a generation engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Protocol

from torch import Tensor

from lightning_cgrpo.prompt_source import PromptSource
from lightning_cgrpo.rollout import PromptGroups, Rollouts


class Noise(Protocol):
    """Gives uniform numbers in [0, 1), float64 ``[B, *shape]``: the only randomness of a rollout.

    They depend on the seed, the update and the prompt's index, so a sampler must draw once, for all its steps.
    """

    def __call__(self, *shape: int) -> Tensor: ...


class Sampler(ABC):
    """Answers every prompt G times.

    Attributes:
        longest: steps or tokens of the longest answer; None if the sampler sets no limit.
    """

    longest: int | None = None

    def check_policy(self, policy: Any) -> None:  # noqa: B027 (most samplers take any policy of their kind)
        """Compare with a policy, before its weights are loaded.

        Raises:
            UserError: this policy can't answer here.
        """

    @abstractmethod
    def rollout(self, policy: Any, prompts: PromptGroups, group_size: int, noise: Noise) -> Rollouts:
        """Sample ``[B, G]`` answers. Runs under inference mode or no_grad, with the policy in eval mode."""

    def check(self, policy: Any, source: PromptSource) -> None:  # noqa: B027 (most can answer whatever there is)
        """Look at a source of prompts before training, for what would end it when such a prompt is drawn.

        Raises:
            UserError: there is a prompt that can't be answered.
        """
