"""One rollout turned into optimizer steps: epochs, minibatches, gradient accumulation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from lightning_cgrpo.distributed import gather_counts, world
from lightning_cgrpo.errors import UserError
from lightning_cgrpo.grpo.losses import Aggregation
from lightning_cgrpo.grpo.surrogates import Clipped, Surrogate
from lightning_cgrpo.randomness import Stream, generator
from lightning_cgrpo.rollout import Examples, Rollouts

CLIPPING = ("clip_low", "clip_high", "clip_limit")
"""Settings that only the clipped surrogate reads."""


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
        clip_limit: the largest ratio where the advantage is negative (two-sided clipping's delta), see
            `surrogates.Clipped`; None for none.
        surrogate: another one than the clipped one with these bounds, `CISPO` or `SAPO`.
        sequence_ratio: one ratio per answer, the geometric mean over its steps (GSPO), see `grpo_loss`. Such ratios
            stay much closer to 1 than those of single steps; the paper's bounds are 3e-4 and 4e-4.
        kl_weight: weight (beta) of the KL to the reference; 0 keeps no reference.
        correct_kl: multiply the KL by the ratio, so that its gradient is unbiased, see `grpo_loss`.
        entropy_weight: weight of the entropy bonus.
        aggregation: how steps make a loss, see `aggregation_weights`.
        max_length: what ``constant`` aggregation divides by.
        mask_truncated: leave answers that were cut short out of the loss, KL and entropy included (DAPO's overlong
            filtering, Yu et al., 2025), going by the sampler's ``info["truncated"]``. Their signals still count, in
            rates and in the statistics of their groups.
        sampling_cap: the largest factor that corrects for what another engine sampled with, see `sampling_ratio`;
            without ``Rollouts.sampling_log_probs`` there is none.
        max_grad_norm: gradients are scaled down to this norm; None leaves them.
    """

    epochs: int = 1
    minibatch_size: int | None = None
    micro_batch_size: int | None = None
    clip_low: float = 0.2
    clip_high: float | None = None
    clip_limit: float | None = None
    surrogate: Surrogate | None = None
    sequence_ratio: bool = False
    kl_weight: float = 0.0
    correct_kl: bool = False
    entropy_weight: float = 0.0
    aggregation: Aggregation = "sequence_mean"
    max_length: int | None = None
    mask_truncated: bool = False
    sampling_cap: float = 2.0
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
        if self.clip_low >= 0.5 and self.clip_high is not None and self.clip_high >= 1:
            raise ValueError(
                "Expected arguments `clip_low` and `clip_high` to be distances from the ratio 1, but got "
                f"{self.clip_low:g} and {self.clip_high:g}, try {1 - self.clip_low:g} and {self.clip_high - 1:g}."
            )
        if not self.sampling_cap >= 1:
            raise ValueError(f"Expected argument `sampling_cap` to be at least 1, but got {self.sampling_cap}.")
        if self.clip_limit is not None and not self.clip_limit > 1 + self.clip[1]:
            raise ValueError(
                f"Expected argument `clip_limit` to be greater than 1 + clip_high, {1 + self.clip[1]:g}, since it is a "
                f"ratio, but got {self.clip_limit}."
            )
        default = {field.name: field.default for field in fields(self)}
        ignored = [name for name in CLIPPING if getattr(self, name) != default[name]]
        if self.surrogate is not None and ignored:
            raise ValueError(
                f"Expected argument `{ignored[0]}` to be left alone, since {type(self.surrogate).__name__} does not "
                "clip by it, try the surrogate's own arguments, or surrogate: null."
            )

    @property
    def clip(self) -> tuple[float, float]:
        """Bounds of the ratio, below and above 1."""
        return self.clip_low, self.clip_low if self.clip_high is None else self.clip_high

    def maximized(self) -> Surrogate:
        """The surrogate that is given, or the clipped one."""
        return Clipped(*self.clip, self.clip_limit) if self.surrogate is None else self.surrogate


def loss_mask(rollouts: Rollouts, mask_truncated: bool) -> Tensor:
    """Steps that have a loss, ``[B, G, T]`` bool.

    Raises:
        UserError: if truncated answers are to be masked and the sampler doesn't say which they are.
    """
    if not mask_truncated:
        return rollouts.mask
    truncated, shape = rollouts.info.get("truncated"), rollouts.mask.shape[:2]
    if not isinstance(truncated, Tensor) or truncated.shape != shape:
        got = f"{tuple(truncated.shape)}" if isinstance(truncated, Tensor) else f"{sorted(rollouts.info)}"
        raise UserError(
            f"Expected the sampler to report info['truncated'] {list(shape)} for mask_truncated, but got {got}, try "
            "GenerationSampler, or mask_truncated: false."
        )
    return rollouts.mask & ~truncated.bool()[..., None]


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
