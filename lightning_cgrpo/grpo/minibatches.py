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
from lightning_cgrpo.core.rollout import Examples, Rollouts, read_steps
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
        if counts is None:
            counts = gather_counts(len(examples), examples.actions.device)
        rank, _ = world()
        first = sum(counts[:rank])
        numbers = torch.arange(first, first + len(examples), device="cpu")
        units_are_steps = examples.mask.dim() == 1
        return cls(numbers, sum(counts), 1 if units_are_steps else group_size)


def count_units(examples: Examples, mask: Tensor) -> tuple[list[int], Tensor]:
    """Units of every process, and answers and steps ``[2]`` of the loss over all processes. Collective.

    Args:
        mask: steps ``[B, G, T]`` of this process in the loss.
    """
    steps = mask.sum()
    units = torch.full_like(steps, len(examples))
    answers = torch.full_like(steps, mask.shape[:2].numel())
    rows = gather_rows(torch.stack([units, answers, steps]))  # [processes, 3]
    # A single process knows its units without waiting for the device.
    counts = [len(examples)] if len(rows) == 1 else rows[:, 0].tolist()
    return counts, rows[:, 1:].sum(0).double()


def partition_units(share: Share, size: int | None, seed: int, update: int, epoch: int) -> list[Tensor]:
    """Random partition of the numbers of all units, the same for any number of processes; on the CPU.

    Args:
        size: most units in a part, over all processes; None for a single part. A group of answers that fits stays
            whole.
    """
    if size is None or share.total <= size:
        return [torch.arange(share.total, device="cpu")]
    # Draw a random order of the groups; the units of a group stay next to each other.
    group_size = share.group_size
    draw = generator(seed, Stream.MINIBATCHES, update, epoch)
    groups = torch.from_numpy(draw.permutation(share.total // group_size))
    order = groups[:, None] * group_size + torch.arange(group_size, device="cpu")  # [groups, group_size]
    if size < group_size:
        # A part is smaller than a group, so parts cut groups.
        parts = math.ceil(share.total / size)
        return list(order.flatten().tensor_split(parts))
    groups_in_part = size // group_size
    parts = math.ceil(len(groups) / groups_in_part)
    return [part.flatten() for part in order.tensor_split(parts)]


def minibatches(share: Share, parts: Iterable[Tensor], device: torch.device) -> Iterator[tuple[Tensor, float]]:
    """This process's units in each part of `partition_units`.

    Yields:
        Their indices on the device (possibly none), and the loss's factor: all units / units of the part.
    """
    for part in parts:
        here = torch.isin(part, share.numbers)
        rows = torch.searchsorted(share.numbers, part)[here]
        factor = share.total / len(part)
        yield rows.to(device, non_blocking=True), factor


def micro_batches(rows: Tensor, size: int | None) -> list[Tensor]:
    """Cut a minibatch's indices into pieces of at most `size`; an empty minibatch gives one empty piece."""
    if size is None or len(rows) <= size:
        return [rows]
    return list(rows.split(size))


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
    # Lengths of the prompts, lengths of the answers, and the prompt of each answer, in one wait for the device.
    prompt_lengths, answer_lengths, prompt_of_answer = on_host(
        examples.shared["prompt_mask"].sum(-1), read_steps(examples.mask[rows]).sum(-1), examples.group[rows]
    )
    prompt_length_of_answer = prompt_lengths[prompt_of_answer]
    answers = zip(prompt_of_answer.tolist(), prompt_length_of_answer.tolist(), answer_lengths.tolist(), strict=True)
    # Add answers to a piece until the next would exceed `tokens`, then begin a new piece with that answer.
    complete_sizes: list[int] = []
    piece = Piece()
    for answer in answers:
        longer = piece.with_answer(*answer)
        if piece.answers and longer.token_count(shares_prompts) > tokens:
            complete_sizes.append(len(piece.answers))
            longer = Piece().with_answer(*answer)
        piece = longer
    return list(rows.split([*complete_sizes, len(piece.answers)]))


@dataclass(frozen=True)
class Piece:
    """Answers of one pass.

    Args:
        prompts: tokens of each prompt, by number.
        answers: tokens of each answer.
    """

    prompts: Mapping[int, int] = field(default_factory=dict)
    answers: tuple[int, ...] = ()

    def with_answer(self, prompt: int, prompt_tokens: int, answer_tokens: int) -> Piece:
        """The piece with one more answer."""
        prompts = {**self.prompts, prompt: prompt_tokens}
        answers = (*self.answers, answer_tokens)
        return Piece(prompts, answers)

    def token_count(self, shares_prompts: bool) -> int:
        """Tokens of the pass: each prompt once without padding, or every answer as long as the longest."""
        if shares_prompts:
            return sum(self.prompts.values()) + sum(self.answers)
        padded_length = max(self.prompts.values()) + max(self.answers)
        return len(self.answers) * padded_length


def put_rows(target: Tensor, rows: Tensor, values: Tensor) -> None:
    """Write `values` of the units `rows` into `target` of all units, which may have more padding."""
    if values.dim() == 1:
        target[rows] = values.to(target.dtype)
    else:
        target[rows, : values.shape[1]] = values.to(target.dtype)
