"""One rollout turned into optimizer steps: epochs, minibatches, gradient accumulation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lightning_cgrpo.distributed import gather_counts, world
from lightning_cgrpo.losses import Aggregation
from lightning_cgrpo.randomness import Stream, generator
from lightning_cgrpo.rollout import Examples, Rollouts


@dataclass(frozen=True)
class Optimization:
    """How often and in what pieces a rollout is used.

    Args:
        epochs: passes over each rollout.
        minibatch_size: units (steps, or answers; see `Policy.examples`) per optimizer step, over all processes; the
            rollout is cut into equal parts of at most this size, groups of answers staying whole where they are no
            larger. None: one part.
        micro_batch_size: units of one forward and backward pass on a process; gradients accumulate over the passes of
            a minibatch. Changes memory, not the result. None: all at once.
        clip_low: how far the ratio may fall below 1.
        clip_high: how far it may rise above 1, `clip_low` by default.
        kl_weight: weight (beta) of the KL to the reference; 0 keeps no reference.
        entropy_weight: weight of the entropy bonus.
        aggregation: how steps make a loss, see `aggregation_weights`.
        max_length: what ``constant`` aggregation divides by.
        max_grad_norm: gradients are scaled down to this norm; None leaves them.
    """

    epochs: int = 1
    minibatch_size: int | None = None
    micro_batch_size: int | None = None
    clip_low: float = 0.2
    clip_high: float | None = None
    kl_weight: float = 0.0
    entropy_weight: float = 0.0
    aggregation: Aggregation = "sequence_mean"
    max_length: int | None = None
    max_grad_norm: float | None = None

    def __post_init__(self) -> None:
        for name in ("epochs", "minibatch_size", "micro_batch_size", "max_length"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"Expected argument `{name}` to be at least 1, but got {value}.")
        for name in ("clip_low", "clip_high", "kl_weight", "entropy_weight", "max_grad_norm"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise ValueError(f"Expected argument `{name}` to be at least 0, but got {value}.")

    @property
    def clip(self) -> tuple[float, float]:
        """Bounds of the ratio, below and above 1."""
        return self.clip_low, self.clip_low if self.clip_high is None else self.clip_high


def with_targets(examples: Examples, rollouts: Rollouts, **values: Tensor) -> Examples:
    """Attach tensors ``[B, G, T]`` of the rollout to the units they belong to."""
    if examples.actions.dim() == 1:
        targets = {name: value[rollouts.mask] for name, value in values.items()}
    else:
        targets = {name: value.flatten(0, 1) for name, value in values.items()}
    return replace(examples, targets={**examples.targets, **targets})


def minibatches(
    examples: Examples, size: int | None, group_size: int, seed: int, update: int, epoch: int
) -> Iterator[tuple[Tensor, float]]:
    """Partitions the units of all processes; yields this process's rows of each part.

    The partition is drawn over all processes' units in the order of their prompts, so that it does not depend on how
    many processes there are. Whole answers stay together with their group, whose prompt they share, if a part has
    room for a group.

    Yields:
        Row numbers (possibly none), and the factor by which the part's loss is scaled: all units / units of the part.
    """
    counts = gather_counts(len(examples), examples.actions.device)
    total, first = sum(counts), sum(counts[: world()[0]])
    if size is None or total <= size:
        yield torch.arange(len(examples), device=examples.actions.device), 1.0
        return
    draw = generator(seed, Stream.MINIBATCHES, update, epoch)
    if examples.actions.dim() == 1:
        group_size = 1
    groups = torch.from_numpy(draw.permutation(total // group_size))
    order = groups[:, None] * group_size + torch.arange(group_size)
    if size >= group_size:
        parts = order.tensor_split(-(-len(groups) // (size // group_size)))
    else:
        parts = order.flatten().tensor_split(-(-total // size))
    for part in (part.flatten() for part in parts):
        rows = part[(part >= first) & (part < first + len(examples))] - first
        yield rows.to(examples.actions.device), total / len(part)


def micro_batches(rows: Tensor, size: int | None) -> list[Tensor]:
    """Cuts the rows of a minibatch into pieces for one pass each; at least one piece, be it empty."""
    return [rows] if size is None or len(rows) <= size else list(rows.split(size))


def put_rows(target: Tensor, rows: Tensor, values: Tensor) -> None:
    """Write units back into a tensor of all examples, whose padding may be wider."""
    if values.dim() == 1:
        target[rows] = values.to(target.dtype)
    else:
        target[rows, : values.shape[1]] = values.to(target.dtype)
