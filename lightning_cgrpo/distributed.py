"""Collectives, which every process must call in equal order. A single process communicates nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")


def world() -> tuple[int, int]:
    """This process's rank and the number of processes."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def all_sum(tensor: Tensor) -> Tensor:
    """Elementwise sum over all processes, identical on each. Counts in float64 are exact up to 2^53."""
    if world()[1] == 1:
        return tensor
    total = tensor.clone()
    dist.all_reduce(total)
    return total


def gather_counts(count: int, device: torch.device) -> list[int]:
    """Every process's `count`, by rank."""
    rank, size = world()
    if size == 1:
        return [count]
    counts = torch.zeros(size, dtype=torch.int64, device=device)
    counts[rank] = count
    dist.all_reduce(counts)
    return [int(value) for value in counts]


def all_sum_named(sums: Mapping[str, Tensor]) -> dict[str, float]:
    """Scalars summed over all processes in one collective; names and their order must be equal on all."""
    if not sums:
        return {}
    total = all_sum(torch.stack([value.double() for value in sums.values()]))
    return dict(zip(sums, total.tolist(), strict=True))


def means(logged: Mapping[str, Sequence[float]] | None) -> dict[str, float]:
    """Means by name over all processes, which may have different names; {} for None, which all processes have."""
    found = [] if logged is None else gathered(logged)
    names = sorted({name for values in found for name in values})
    together = {name: [value for values in found for value in values.get(name, ())] for name in names}
    return {name: sum(values) / len(values) for name, values in together.items()}


def gathered(value: T) -> list[T]:
    """Every process's picklable `value`, by rank."""
    size = world()[1]
    if size == 1:
        return [value]
    found: list[T | None] = [None] * size
    dist.all_gather_object(found, value)
    return found  # type: ignore[return-value]  # all are filled
