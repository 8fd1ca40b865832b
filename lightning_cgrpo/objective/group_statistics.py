"""Moments of components within groups."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_cgrpo.objective.objective import Components
from lightning_cgrpo.objective.rounding import ULPS


@dataclass(frozen=True)
class GroupStatistics:
    """Moments of each component within each group, over the applicable entries; float64, so that no square overflows.

    Args:
        components: of which these are the moments.
        deviation: ``[J, B, G]`` value - group mean, 0 where not applicable.
        std: ``[J, B]`` population standard deviation, exactly 0 without variance.
        count: ``[J, B]`` applicable entries.
        used: ``[B, G]`` bool, answers with any applicable component.
        values: ``[J, B, G]``, 0 where not applicable.
    """

    components: Components
    deviation: Tensor
    std: Tensor
    count: Tensor
    used: Tensor
    values: Tensor

    @property
    def applicable(self) -> Tensor:
        """``[J, B, G]`` bool."""
        return self.components.applicable

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the components, which advantages have too."""
        return self.components.values.dtype

    @property
    def informative(self) -> Tensor:
        """``[J, B]`` bool, groups in which a component varies."""
        return self.std > 0

    @property
    def standardized(self) -> Tensor:
        """Z ``[J, B, G]``: deviation / std, 0 without variance."""
        return divide_or_zero(self.deviation, self.std[..., None])


def group_statistics(components: Components) -> GroupStatistics:
    """Moments of components ``[J, B, G]``.

    Example:
        >>> values = torch.tensor([[[1.0, 0.0, 0.0, 0.0]]])
        >>> group_statistics(Components(values, values >= 0)).standardized.float()
        tensor([[[ 1.7321, -0.5774, -0.5774, -0.5774]]])
    """
    applicable_JBG = components.applicable
    values_JBG = components.values.double()
    count_JB = applicable_JBG.sum(-1)
    # Shifted by the first applicable value, equal values are exactly zero, whatever the rounding of their mean.
    first_JB1 = applicable_JBG.to(torch.uint8).argmax(-1, keepdim=True)
    shifted_JBG = torch.where(applicable_JBG, values_JBG - values_JBG.gather(-1, first_JB1), 0)
    mean_JB = shifted_JBG.sum(-1) / count_JB.clamp(min=1)
    deviation_JBG = torch.where(applicable_JBG, shifted_JBG - mean_JB[..., None], 0)
    std_JB = (deviation_JBG.square().sum(-1) / count_JB.clamp(min=1)).sqrt()
    # A spread within the rounding of the values is none. Values that float32 holds may have been computed in it, beside
    # another component's in float64.
    largest_JB = torch.where(applicable_JBG, values_JBG.abs(), 0).amax(-1)
    holds_float32_JBG = values_JBG.float().double() == values_JBG
    all_float32_JB = (~applicable_JBG | holds_float32_JBG).all(-1)
    eps = torch.finfo(components.values.dtype).eps
    float32_eps = torch.finfo(torch.float32).eps
    eps_JB = torch.where(all_float32_JB, max(eps, float32_eps), eps)
    informative_JB = std_JB > ULPS * eps_JB * largest_JB
    return GroupStatistics(
        components,
        deviation=deviation_JBG * informative_JB[..., None],
        std=std_JB * informative_JB,
        count=count_JB,
        used=applicable_JBG.any(0),
        values=torch.where(applicable_JBG, values_JBG, 0),
    )


def divide_or_zero(numerator: Tensor, std: Tensor) -> Tensor:
    """Numerator / std, 0 without variance."""
    divisor = torch.where(std > 0, std, 1)
    return torch.where(std > 0, numerator / divisor, 0)
