"""Observations in units of their running standard deviations."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lightning_cgrpo.core.distributed import all_sum
from lightning_cgrpo.core.errors import expect
from lightning_cgrpo.core.rollout import Rollouts

SMALLEST = 1e-8
"""Added to variances, as in stable-baselines3's VecNormalize."""
LIMIT = 10.0
"""Largest normalized value, as there."""


class NormalizedObservations(nn.Module):
    """First layer of a network: observations ``[..., size]`` minus their mean, divided by their standard deviation.

    The moments are those of the steps of all earlier updates and all processes. They stay within an update, so
    that a group and its training pass see the same policy. The moments are buffers: checkpoints hold them, and
    `lightning_cgrpo.load` restores them. In the first update the observations are limited alone.

    Args:
        size: numbers of an observation.
    """

    count: Tensor
    mean: Tensor
    squares: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        expect(size >= 1, "size", "at least 1", size)
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("squares", torch.zeros(size, dtype=torch.float64))  # of deviations from the mean

    def forward(self, observations: Tensor) -> Tensor:
        variance = torch.where(self.count > 0, self.squares / self.count.clamp(min=1), 1)
        scale = (variance + SMALLEST).rsqrt()
        normalized = (observations - self.mean.to(observations.dtype)) * scale.to(observations.dtype)
        return normalized.clamp(-LIMIT, LIMIT)

    def learn(self, observations: Tensor, mask: Tensor) -> None:
        """Add the observations ``[B, G, T, size]`` of the steps in `mask` ``[B, G, T]``. Collective."""
        # Deviations from the present mean are summed, because their squares keep more digits than the observations'.
        deviation = torch.where(mask[..., None], observations.double() - self.mean, 0).flatten(0, -2)  # [B G T, size]
        sums = torch.cat([mask.sum().double()[None], deviation.sum(0), deviation.square().sum(0)])  # [1 + 2 size]
        number, total, squares = all_sum(sums).split([1, len(self.mean), len(self.mean)])
        # The mean moves by the mean deviation of all steps, earlier ones included, whose deviations sum to 0.
        count = self.count + number.squeeze(0)
        shift = total / count.clamp(min=1)
        self.squares.add_(squares - shift * total).clamp_(min=0)
        self.mean.add_(shift)
        self.count.copy_(count)


def learn_observations(network: nn.Module, rollouts: Rollouts) -> None:
    """Add an update's observations to every `NormalizedObservations` of a network. Collective."""
    for layer in network.modules():
        if isinstance(layer, NormalizedObservations):
            layer.learn(rollouts.inputs["observations"], rollouts.mask)
