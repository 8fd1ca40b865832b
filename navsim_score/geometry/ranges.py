"""Ranges of consecutive items: range i of N covers ``counts[i]`` items."""

from __future__ import annotations

import torch
from torch import Tensor


def starts(counts: Tensor) -> Tensor:
    """``[N + 1]`` first item of each consecutive range, and the end of the last range."""
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


def expand(counts: Tensor, first: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Each item's range and number; numbers within range i count from ``first[i]``, by default 0."""
    rows = torch.repeat_interleave(counts)
    shift = counts - counts.cumsum(0)  # minus the items before each range
    if first is not None:
        shift = first + shift
    return rows, torch.arange(len(rows), device=counts.device) + shift[rows]
