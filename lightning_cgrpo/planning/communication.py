"""Bytes that a GPU sends in an update.

NCCL sends by rings (Patarasuk and Yuan, 2009). Each of N GPUs sends (N - 1) / N of the bytes to gather shares or
scatter sums, and twice as many to have all sums everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

from lightning_cgrpo.planning.execution import Execution
from lightning_cgrpo.planning.workload import Workload


@dataclass(frozen=True)
class Traffic:
    """Bytes that a GPU sends in an update, by collective."""

    all_gather: int = 0
    reduce_scatter: int = 0
    all_reduce: int = 0

    @property
    def total(self) -> int:
        return self.all_gather + self.reduce_scatter + self.all_reduce


def ring(size: int, gpus: int) -> int:
    """Bytes that a GPU sends to gather or scatter `size` bytes: size (N - 1) / N.

    Example:
        >>> ring(800, 4)
        600
    """
    return size * (gpus - 1) // gpus


def traffic(parameters: int, trainable_bytes: int, work: Workload, how: Execution, element: int) -> Traffic:
    """Bytes that a GPU sends in an update.

    - DDP sums gradients once per optimizer step: 2 (N - 1) / N of their bytes.
    - FSDP2 gathers the weights once for the rollout and each pass without gradients, twice per training pass, which
    also
      sums gradients to shares.

    Args:
        element: bytes per number that FSDP2 gathers.
    """
    gpus, steps = how.gpus, work.epochs * len(work.passes)
    if how.sharding == "none" or gpus == 1:
        return Traffic()
    if how.sharding == "ddp":
        return Traffic(all_reduce=2 * ring(trainable_bytes, gpus) * steps)
    passes = work.epochs * sum(len(step) for step in work.passes)
    gathers = bool(work.generated) + len(work.reference_passes) + len(work.old_passes) + 2 * passes
    return Traffic(
        all_gather=gathers * ring(parameters * element, gpus), reduce_scatter=passes * ring(trainable_bytes, gpus)
    )
