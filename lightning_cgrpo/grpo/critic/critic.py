"""Base class of critics, networks with a value head per component."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor, nn

from lightning_cgrpo.core.rollout import Examples
from lightning_cgrpo.settings.objects import Stated


class Critic(Stated, nn.Module, ABC):
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

    def layers(self) -> list[nn.Module]:
        """Parts that sharded training gathers one at a time, outer parts first."""
        return self.network.layers()
