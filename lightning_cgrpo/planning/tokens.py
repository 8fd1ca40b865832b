"""The packed rows of an update, and their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lightning_cgrpo.planning.activations import Row
from lightning_cgrpo.planning.workload import Workload


def rows_of(work: Workload, passes: Sequence[int], shared: bool) -> list[Row]:
    """The packed row of every pass; `passes` are their numbers of answers.

    A pass over the answers [i, j) has the prompts floor(i / G) … floor((j - 1) / G), each once.
    """
    rows, start = [], 0
    for size in passes:
        end = start + size
        prompts = (end - 1) // work.group_size - start // work.group_size + 1
        rows.append(Row(prompts, size, work.prompt_tokens, work.answer_tokens, shared))
        start = end
    return rows


def training_rows(work: Workload, shared: bool) -> list[Row]:
    """The packed rows of an epoch."""
    return [row for passes in work.passes for row in rows_of(work, passes, shared)]


@dataclass(frozen=True)
class Tokens:
    """Tokens of one update of all processes.

    Args:
        sampled: B G C.
        prompts: B P.
        trained: in the rows of training passes.
        reference: in the rows of reference passes.
        unshared: in training passes with a prompt per answer, B G (P + C) per epoch.
    """

    sampled: int
    prompts: int
    trained: int
    reference: int
    unshared: int


def tokens(work: Workload, shared: bool) -> Tokens:
    """Tokens of an update, scaled up from one process's passes."""
    scale = work.all_prompts / work.prompts
    trained = work.epochs * sum(row.tokens for row in training_rows(work, shared))
    answers = work.all_prompts * work.group_size
    return Tokens(
        sampled=answers * work.answer_tokens if work.samples else 0,
        prompts=work.all_prompts * work.prompt_tokens,
        trained=round(scale * trained),
        reference=round(scale * sum(row.tokens for row in rows_of(work, work.reference_passes, shared))),
        unshared=work.epochs * answers * (work.prompt_tokens + work.answer_tokens),
    )


def steps(work: Workload) -> Tokens:
    """`Tokens` of a small policy, counting steps; prompts have none."""
    sampled = work.all_prompts * work.group_size * work.answer_tokens
    return Tokens(sampled, 0, work.epochs * sampled, sampled if work.reference_passes else 0, work.epochs * sampled)
