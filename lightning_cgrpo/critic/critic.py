"""Base class of critics, networks with a value head per component."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor, nn

from lightning_cgrpo.rollout import Examples, Rollouts


class Critic(nn.Module, ABC):
    """Predicts, before each step, the discounted sum of every component from that step on.

    Attributes:
        network: a `Policy` with value heads in place of its output layer.
    """

    network: Any

    @abstractmethod
    def load(self, components: int) -> None:
        """Make or read the weights, with a head for each of J components; a second call has no effect."""

    @abstractmethod
    def forward(self, examples: Examples) -> Tensor:
        """Differentiable values ``[N, J]`` of steps, or ``[N, T, J]`` of answers, finite outside the mask."""

    def examples(self, rollouts: Rollouts) -> Examples:
        examples: Examples = self.network.examples(rollouts)
        return examples

    def layers(self) -> list[nn.Module]:
        """Parts that sharded training gathers one at a time, outer parts first."""
        layers: list[nn.Module] = self.network.layers()
        return layers

    def placeholder(self) -> Examples:
        placeholder: Examples = self.network.placeholder()
        return placeholder

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        values: Tensor = super().__call__(*args, **kwargs)
        return values
