"""What a GPU sends in an update.

By rings (Patarasuk and Yuan, 2009), which NCCL uses for large messages, each of N GPUs sends (N - 1) / N of the bytes
to gather shares of all GPUs or to scatter sums, and twice that to have all sums everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

from lightning_cgrpo.planning.execution import Execution
from lightning_cgrpo.planning.workload import Workload


@dataclass(frozen=True)
class Traffic:
    """Bytes that a GPU sends in an update (and receives as many)."""

    all_gather: int = 0
    reduce_scatter: int = 0
    all_reduce: int = 0

    @property
    def total(self) -> int:
        """Of all three."""
        return self.all_gather + self.reduce_scatter + self.all_reduce


def ring(size: int, gpus: int) -> int:
    """Bytes that a GPU sends to gather or scatter `size` bytes: size (N - 1) / N.

    Example:
        >>> ring(800, 4)
        600
    """
    return size * (gpus - 1) // gpus


def traffic(parameters: int, trainable_bytes: int, work: Workload, how: Execution, element: int) -> Traffic:
    """Bytes of an update.

    - DDP sums gradients once an optimizer step, at its last pass: 2 (N - 1) / N of their bytes.
    - FSDP2 gathers the weights once for the rollout, once for a pass without gradients, and twice for one with (in the
      forward and in the backward pass); after every such pass it sums gradients to their shares. The reference's
      weights are gathered for its own passes.

    Rates, counts and other scalars are some kilobytes, and not counted.

    Args:
        parameters: of the policy.
        trainable_bytes: of its gradients.
        work: the update.
        how: strategy and GPUs.
        element: bytes of each number that FSDP gathers, see `memory.arithmetic_of`.
    """
    gpus, steps = how.gpus, work.epochs * len(work.passes)
    if how.sharding == "none" or gpus == 1:
        return Traffic()
    if how.sharding == "ddp":
        return Traffic(all_reduce=2 * ring(trainable_bytes, gpus) * steps)
    passes = work.epochs * sum(len(step) for step in work.passes)
    without = len(work.reference_passes) + len(work.old_passes)
    gathers = bool(work.generated) + without + 2 * passes
    return Traffic(
        all_gather=gathers * ring(parameters * element, gpus), reduce_scatter=passes * ring(trainable_bytes, gpus)
    )
