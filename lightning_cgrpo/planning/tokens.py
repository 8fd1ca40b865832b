"""The rows that an update is computed in, and the tokens in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lightning_cgrpo.planning.activations import Row
from lightning_cgrpo.planning.workload import Workload


def rows_of(work: Workload, passes: Sequence[int], shared: bool) -> list[Row]:
    """The packed row of every pass: answers in the order of their prompts, cut as the passes say.

    A pass over the answers [i, j) has the prompts of floor(i / G) … floor((j - 1) / G), each once. A prompt whose
    answers are in two passes is computed in both.
    """
    rows, start = [], 0
    for size in passes:
        end = start + size
        prompts = (end - 1) // work.group_size - start // work.group_size + 1
        rows.append(Row(prompts, size, work.prompt_tokens, work.answer_tokens, shared))
        start = end
    return rows


def training_rows(work: Workload, shared: bool) -> list[list[Row]]:
    """Of every optimizer step of an epoch the rows of its passes."""
    return [rows_of(work, passes, shared) for passes in work.passes]


@dataclass(frozen=True)
class Tokens:
    """Tokens of one update of all processes.

    Args:
        sampled: by the rollout, B G C.
        prompts: of distinct prompts, B P.
        trained: that training passes compute, all epochs together.
        reference: that the reference computes.
        unshared: that training would compute with a prompt for every answer, B G (P + C) in every epoch.
    """

    sampled: int
    prompts: int
    trained: int
    reference: int
    unshared: int


def tokens(work: Workload, shared: bool) -> Tokens:
    """Tokens of an update, of all prompts, whoever computes them, as passes of one process's share cut them."""
    scale = work.all_prompts / work.prompts
    trained = work.epochs * sum(row.tokens for step in training_rows(work, shared) for row in step)
    answers = work.all_prompts * work.group_size
    return Tokens(
        sampled=answers * work.answer_tokens if work.max_new_tokens else 0,
        prompts=work.all_prompts * work.prompt_tokens,
        trained=round(scale * trained),
        reference=round(scale * sum(row.tokens for row in rows_of(work, work.reference_passes, shared))),
        unshared=work.epochs * answers * (work.prompt_tokens + work.answer_tokens),
    )


def steps(work: Workload) -> Tokens:
    """Likewise the steps of a small policy, which reads no prompts."""
    sampled = work.all_prompts * work.group_size * work.answer_tokens
    return Tokens(sampled, 0, work.epochs * sampled, sampled if work.reference_passes else 0, work.epochs * sampled)
