"""The few collectives that the algorithm needs, and what they mean on a single process."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


def world() -> tuple[int, int]:
    """This process's rank and the number of processes."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def all_sum(tensor: Tensor) -> Tensor:
    """The sum over all processes, identical on each; counts in float64 are exact."""
    if world()[1] == 1:
        return tensor
    total = tensor.clone()
    dist.all_reduce(total)
    return total


def gather_counts(count: int, device: torch.device) -> list[int]:
    """One number of every process, by rank."""
    size = world()[1]
    if size == 1:
        return [count]
    counts = torch.zeros(size, dtype=torch.int64, device=device)
    counts[world()[0]] = count
    dist.all_reduce(counts)
    return [int(value) for value in counts]
