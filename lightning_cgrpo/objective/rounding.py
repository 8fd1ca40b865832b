"""Differences that rounding leaves between equal numbers are no differences between answers."""

from __future__ import annotations

import torch
from torch import Tensor

ULPS = 4
"""Differences below this many roundings of their terms are residue: in float32, 5e-7 of them."""


def without_residue(difference: Tensor, size: Tensor) -> Tensor:
    """The difference, and 0 where its terms cancel up to rounding.

    Args:
        size: sum of the absolute terms.

    Example:
        >>> terms = torch.tensor([0.1] * 10 + [-1.0])
        >>> terms.sum() == 0, without_residue(terms.sum(), terms.abs().sum())
        (tensor(False), tensor(0.))
    """
    residue = ULPS * torch.finfo(difference.dtype).eps * size
    return torch.where(difference.abs() <= residue, 0, difference)
