"""Moments of components within groups."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from lightning_cgrpo.objective.objective import Components

ULPS = 4
"""Standard deviations below this many roundings of the largest value are residue: in float32, 5e-7 of it."""


@dataclass(frozen=True)
class GroupStatistics:
    """Moments of each component within each group, over the applicable entries; float64, so that no square overflows.

    Args:
        deviation: ``[J, B, G]`` value - group mean, 0 where not applicable.
        std: ``[J, B]`` population standard deviation, exactly 0 without variance.
        count: ``[J, B]`` applicable entries.
        used: ``[B, G]`` bool, answers with any applicable component.
        values: ``[J, B, G]``, 0 where not applicable.
        applicable: ``[J, B, G]`` bool.
    """

    deviation: Tensor
    std: Tensor
    count: Tensor
    used: Tensor
    values: Tensor
    applicable: Tensor

    @property
    def informative(self) -> Tensor:
        return self.std > 0

    @property
    def standardized(self) -> Tensor:
        """Z ``[J, B, G]``: deviation / std, 0 without variance."""
        return divide(self.deviation, self.std[..., None])


@lru_cache(maxsize=1)  # for the estimator and the report of an update
def group_statistics(components: Components) -> GroupStatistics:
    """Moments of components ``[J, B, G]``.

    Example:
        >>> values = torch.tensor([[[1.0, 0.0, 0.0, 0.0]]])
        >>> group_statistics(Components(values, values >= 0)).standardized.float()
        tensor([[[ 1.7321, -0.5774, -0.5774, -0.5774]]])
    """
    values, applicable = components.values, components.applicable
    resolution, values = torch.finfo(values.dtype).eps, values.double()
    count = applicable.sum(-1)  # [J, B]
    # Shifted by a member, equal values are exactly zero, whatever the rounding of their mean.
    first = applicable.to(torch.uint8).argmax(-1, keepdim=True)
    shifted = torch.where(applicable, values - values.gather(-1, first), 0)
    mean = shifted.sum(-1) / count.clamp(min=1)
    deviation = torch.where(applicable, shifted - mean[..., None], 0)
    std = (deviation.square().sum(-1) / count.clamp(min=1)).sqrt()
    scale = torch.where(applicable, values.abs(), 0).amax(-1)  # [J, B]
    informative = std > ULPS * resolution * scale
    return GroupStatistics(
        deviation * informative[..., None],
        std * informative,
        count,
        applicable.any(0),
        torch.where(applicable, values, 0),
        applicable,
    )


def divide(numerator: Tensor, std: Tensor) -> Tensor:
    """Numerator / std, 0 without variance."""
    return torch.where(std > 0, numerator / torch.where(std > 0, std, 1), 0)
