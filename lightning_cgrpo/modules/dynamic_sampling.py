"""Dynamic sampling (`redraws` of ConstrainedGRPO): groups without variation are redrawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from lightning_cgrpo.core.distributed import all_sum
from lightning_cgrpo.core.rollout import PromptGroups, Rollouts, Signal, Signals
from lightning_cgrpo.objective.group_statistics import group_statistics
from lightning_cgrpo.objective.objective import Components

Draw = Callable[[PromptGroups, int], tuple[Rollouts, dict[str, Signal]]]
"""Samples and scores answers to prompts, with a round's randomness."""

_D = TypeVar("_D", Rollouts, Signal)


@dataclass(frozen=True)
class Redrawn:
    """Answers to train on, after dynamic sampling.

    Args:
        groups: number of redrawn groups, of all rounds.
        steps: scalar, sampled steps of the redrawn groups, of all rounds.
    """

    rollouts: Rollouts
    signals: dict[str, Signal]
    groups: int = 0
    steps: Tensor | int = 0


def redraw(
    draw: Draw,
    varies: Callable[[Signals], Tensor],
    prompts: PromptGroups,
    rollouts: Rollouts,
    signals: dict[str, Signal],
    rounds: int,
) -> Redrawn:
    """Redraw (sample again) groups without variation, until a draw has some (DAPO, Yu et al., 2025).

    DAPO fills the batch with other prompts; here the prompts stay. If no draw has any, the first draw stays. The result
    overrepresents rare behaviors, so measure rates on the first draw. Collective.

    Args:
        varies: ``[B]`` bool of signals, see `varying`.
    """
    groups = 0
    steps: Tensor | int = 0
    for number in range(rounds):
        rows = (~varies(signals)).nonzero().squeeze(-1)  # [R]
        # Processes without prompts continue too, because the sampler may need all processes.
        if not int(all_sum(torch.tensor(len(rows), device=rows.device))):
            break
        others, measured = draw(chosen_prompts(prompts, rows), number)
        steps = steps + others.mask.sum()
        better = varies(measured).nonzero().squeeze(-1)
        if len(better):
            # Redrawn prompts may all lack an input, such as images, that other prompts have.
            kept = {name: value for name, value in rollouts.inputs.items() if name not in others.inputs}
            rollouts = with_groups(rollouts, rows[better], others, better)
            rollouts = replace(rollouts, inputs=rollouts.inputs | kept)
            signals = {
                name: with_groups(everywhere(signal), rows[better], everywhere(measured[name]), better)
                for name, signal in signals.items()
            }
        groups += len(rows)
    return Redrawn(rollouts, signals, groups, steps)


def varying(components: Components, weights: Tensor) -> Tensor:
    """``[B]`` bool, groups in which a component varies whose weight ``[J]`` is not 0."""
    return (group_statistics(components).informative & (weights != 0)[:, None]).any(0)


def chosen_prompts(prompts: PromptGroups, rows: Tensor) -> PromptGroups:
    """The prompts in `rows`."""
    columns = {
        name: column[rows] if isinstance(column, Tensor) else [column[row] for row in rows.tolist()]
        for name, column in prompts.columns.items()
    }
    return PromptGroups(prompts.index[rows], columns)


def everywhere(signal: Signal) -> Signal:
    """The signal with its mask, because a score may apply everywhere in one draw, and partly in another."""
    value, applicable = signal.value, signal.applicable
    every = torch.ones(value.shape[:2], dtype=torch.bool, device=value.device)
    return replace(signal, applicable=every if applicable is None else applicable)


def with_groups(first: _D, rows: Tensor, others: _D, of: Tensor) -> _D:
    """Copy `first`, with the groups `rows` ``[R]`` replaced by the groups `of` ``[R]`` of `others`.

    Both answer the same prompts. Padding may differ.
    """
    parts = {f.name: _put(getattr(first, f.name), rows, getattr(others, f.name), of) for f in fields(first)}
    return replace(first, **parts)


def _put(values: Any, rows: Tensor, others: Any, of: Tensor) -> Any:
    if isinstance(values, dict):  # a reward function may give a column in some draws alone
        return {name: _put(value, rows, others[name], of) for name, value in values.items() if name in others}
    if isinstance(values, list):
        chosen = dict(zip(rows.tolist(), of.tolist(), strict=True))
        return [others[chosen[row]] if row in chosen else value for row, value in enumerate(values)]
    if values is None or values.shape[1] != others.shape[1]:  # the prompts, padded differently
        return values
    if values.dim() > 2 and values.shape[2] != others.shape[2]:
        longest = max(values.shape[2], others.shape[2])
        values, others = (
            pad(tensor, (*(0, 0) * (tensor.dim() - 3), 0, longest - tensor.shape[2])) for tensor in (values, others)
        )  # [B, G, longest, ...]
    # Not in place, because tensors of inference mode can't be written.
    dtype = torch.promote_types(values.dtype, others.dtype)  # a redrawn score may need float64
    return values.to(dtype).index_copy(0, rows, others[of].to(dtype))
