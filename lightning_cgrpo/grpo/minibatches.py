"""Optimizer steps of a rollout: epochs, minibatches, gradient accumulation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lightning_cgrpo.core.distributed import gather_counts, gather_rows, on_host, world
from lightning_cgrpo.core.errors import UserError, expect
from lightning_cgrpo.core.randomness import Stream, generator
from lightning_cgrpo.core.rollout import Examples, Rollouts, read
from lightning_cgrpo.grpo.losses import Aggregation, LossOptions
from lightning_cgrpo.grpo.sampling_correction import SamplingCorrection

OptimizerCallable = Callable[[Iterable[Any]], Optimizer]
LRSchedulerCallable = Callable[[Optimizer], LRScheduler]


@dataclass(frozen=True)
class Optimization(LossOptions):
    """Optimizer steps of a rollout, and the options of their loss (see `LossOptions`).

    Args:
        epochs: passes over each rollout.
        minibatch_size: most units (steps or answers) per optimizer step, over all processes; None: all.
        micro_batch_size: units per pass on a process, for memory.
        micro_batch_tokens: tokens per pass in its place, for answers of different lengths: see `token_batches`. With
            neither, a pass has all units; of language models under bf16-mixed on a GPU, the tokens that its free memory
            holds (`fitting_tokens`).
        aggregation: weights of steps, see `aggregation_weights`.
        max_length: divisor for ``aggregation: constant``, by default T.
        mask_truncated: leave truncated answers out of the loss, not of advantages (overlong filtering, DAPO, Yu et al.,
            2025).
        sampling: correction for the samples of another engine; None for no correction.
        max_grad_norm: None for no limit.
    """

    epochs: int = 1
    minibatch_size: int | None = None
    micro_batch_size: int | None = None
    micro_batch_tokens: int | None = None
    aggregation: Aggregation = "sequence_mean"
    max_length: int | None = None
    mask_truncated: bool = False
    sampling: SamplingCorrection | None = SamplingCorrection()  # noqa: RUF009 (frozen)
    max_grad_norm: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("epochs", "minibatch_size", "micro_batch_size", "micro_batch_tokens", "max_length"):
            value = getattr(self, name)
            expect(value is None or value >= 1, name, "at least 1", value)
        if self.micro_batch_size and self.micro_batch_tokens:
            raise UserError("Expected micro_batch_size or micro_batch_tokens, but got both.")
        norm = self.max_grad_norm
        expect(norm is None or norm > 0, "max_grad_norm", "positive, or null for no limit", norm)


def loss_mask(rollouts: Rollouts, mask_truncated: bool) -> Tensor:
    """Steps that enter the loss, ``[B, G, T]`` bool; `mask_truncated` leaves truncated answers out."""
    if not mask_truncated:
        return rollouts.mask
    truncated = rollouts.info.get("truncated")
    shape = rollouts.mask.shape[:2]  # [B, G]
    if not isinstance(truncated, Tensor) or truncated.shape != shape:
        got = f"{tuple(truncated.shape)}" if isinstance(truncated, Tensor) else f"{sorted(rollouts.info)}"
        raise UserError(
            f"Expected the sampler to report info['truncated'] {list(shape)} for mask_truncated, but got {got}, try "
            "GenerationSampler, or mask_truncated: false."
        )
    return rollouts.mask & ~truncated.bool()[..., None]


def with_targets(examples: Examples, rollouts: Rollouts, **values: Tensor) -> Examples:
    """Add tensors ``[B, G, T, ...]`` of the rollout to targets: ``[N, ...]`` of steps, ``[N, T, ...]`` of answers."""
    if examples.mask.dim() == 1:
        targets = {name: value[rollouts.mask] for name, value in values.items()}
    else:
        targets = {name: value.flatten(0, 1) for name, value in values.items()}
    return replace(examples, targets={**examples.targets, **targets})


@dataclass(frozen=True)
class Share:
    """This process's units among those of all processes.

    Args:
        numbers: ``[N]`` int64 on the CPU, ascending, numbers of this process's units.
        total: units of all processes.
        group_size: consecutive units that minibatches keep together; 1 for steps.
    """

    numbers: Tensor
    total: int
    group_size: int

    @classmethod
    def of(cls, examples: Examples, group_size: int, counts: Sequence[int] | None = None) -> Share:
        """Units numbered by process.

        Args:
            counts: every process's units; by default gathered, which is collective.
        """
        counts = gather_counts(len(examples), examples.actions.device) if counts is None else counts
        first = sum(counts[: world()[0]])
        numbers = torch.arange(first, first + len(examples), device="cpu")
        return cls(numbers, sum(counts), group_size if examples.mask.dim() == 2 else 1)


def counted(examples: Examples, mask: Tensor) -> tuple[list[int], Tensor]:
    """Units of every process, and answers and steps ``[2]`` of the loss over all processes. Collective.

    Args:
        mask: steps ``[B, G, T]`` of this process in the loss.
    """
    steps = mask.sum()
    units = [torch.full_like(steps, count) for count in (len(examples), mask.shape[:2].numel())]
    rows = gather_rows(torch.stack([*units, steps]))
    counts = [len(examples)] if len(rows) == 1 else rows[:, 0].tolist()
    return counts, rows[:, 1:].sum(0).double()


def partition(share: Share, size: int | None, seed: int, update: int, epoch: int) -> list[Tensor]:
    """Random partition of the numbers of all units, the same for any number of processes; on the CPU.

    Args:
        size: most units in a part, over all processes; None for a single part. A group of answers that fits stays
            whole.
    """
    if size is None or share.total <= size:
        return [torch.arange(share.total, device="cpu")]
    group_size = share.group_size
    draw = generator(seed, Stream.MINIBATCHES, update, epoch)
    groups = torch.from_numpy(draw.permutation(share.total // group_size))
    order = groups[:, None] * group_size + torch.arange(group_size, device="cpu")  # [groups, group_size]
    if size < group_size:  # parts cut groups
        parts = math.ceil(share.total / size)
        return list(order.flatten().tensor_split(parts))
    parts = math.ceil(len(groups) / (size // group_size))
    return [part.flatten() for part in order.tensor_split(parts)]


def minibatches(share: Share, parts: Iterable[Tensor], device: torch.device) -> Iterator[tuple[Tensor, float]]:
    """This process's units in each part of a `partition`.

    Yields:
        Their indices on the device (possibly none), and the loss's factor: all units / units of the part.
    """
    for part in parts:
        rows = torch.searchsorted(share.numbers, part)
        here = torch.isin(part, share.numbers)
        yield rows[here].to(device, non_blocking=True), share.total / len(part)


def micro_batches(rows: Tensor, size: int | None) -> list[Tensor]:
    """Cut a minibatch's indices into pieces of at most `size`; an empty minibatch gives one empty piece."""
    return [rows] if size is None or len(rows) <= size else list(rows.split(size))


def token_batches(examples: Examples, rows: Tensor, tokens: int, shares_prompts: bool) -> list[Tensor]:
    """Cut a minibatch's answers into pieces of at most `tokens` with their prompts; a longer answer is a piece.

    Args:
        rows: indices of answers ``[N]``, kept in order.
        shares_prompts: count a prompt once per piece, and no padding; otherwise every answer has the length of the
            piece's longest prompt and longest answer.

    Raises:
        UserError: the units are single steps.
    """
    if examples.mask.dim() == 1:
        raise UserError("Expected a policy that trains on whole answers for micro_batch_tokens, try micro_batch_size.")
    prompts, answers, group = on_host(
        examples.shared["prompt_mask"].sum(-1), read(examples.mask[rows]).sum(-1), examples.group[rows]
    )
    sizes: list[int] = []  # of the complete pieces
    piece = Piece()
    for member in zip(group.tolist(), prompts[group].tolist(), answers.tolist(), strict=True):
        longer = piece.extended(*member)
        if piece.answers and longer.tokens(shares_prompts) > tokens:
            sizes.append(len(piece.answers))
            longer = Piece().extended(*member)
        piece = longer
    return list(rows.split([*sizes, len(piece.answers)]))


@dataclass(frozen=True)
class Piece:
    """Answers of one pass.

    Args:
        prompts: tokens of each prompt, by number.
        answers: tokens of each answer.
    """

    prompts: Mapping[int, int] = field(default_factory=dict)
    answers: tuple[int, ...] = ()

    def extended(self, prompt: int, prompt_tokens: int, answer_tokens: int) -> Piece:
        """The piece with one more answer."""
        return Piece({**self.prompts, prompt: prompt_tokens}, (*self.answers, answer_tokens))

    def tokens(self, shares_prompts: bool) -> int:
        """Tokens of the pass: each prompt once without padding, or every answer as long as the longest."""
        if shares_prompts:
            return sum(self.prompts.values()) + sum(self.answers)
        return len(self.answers) * (max(self.prompts.values()) + max(self.answers))


def put_rows(target: Tensor, rows: Tensor, values: Tensor) -> None:
    """Write `values` of the units `rows` into `target` of all units, which may have more padding."""
    if values.dim() == 1:
        target[rows] = values.to(target.dtype)
    else:
        target[rows, : values.shape[1]] = values.to(target.dtype)
