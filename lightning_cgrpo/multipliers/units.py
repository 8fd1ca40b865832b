"""Standard units of violations."""

from __future__ import annotations

from torch import Tensor

SMALLEST = 1e-3
"""Threshold whose unit serves smaller thresholds, because the unit of a threshold of 0 would be 0."""


def standard_units(thresholds: Tensor) -> Tensor:
    """Rate ``[K]`` per standard unit, sqrt(d (1 - d)): the deviation of one indicator at its threshold d.

    In u = 2 arcsin sqrt(rate), du = d(rate) / sqrt(rate (1 - rate)), and a rate measured on n answers has the
    deviation 1 / sqrt(n) whatever the rate. A constant unit per constraint, unlike u itself, keeps the mean of a noisy
    violation 0 where the mean rate meets the threshold.

    Example:
        >>> import torch
        >>> standard_units(torch.tensor([0.5, 0.1, 0.0]))
        tensor([0.5000, 0.3000, 0.0316])
    """
    d = thresholds.clamp(SMALLEST, 1 - SMALLEST)
    return (d * (1 - d)).sqrt()
