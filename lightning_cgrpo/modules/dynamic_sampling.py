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
        varies: ``[B]`` bool of signals, see `varying_groups`.
    """
    groups = 0
    steps: Tensor | int = 0
    for number in range(rounds):
        # Sample the groups again that have no variation yet.
        rows = (~varies(signals)).nonzero().squeeze(-1)  # [R]
        # Processes without prompts continue too, because the sampler may need all processes.
        if not int(all_sum(torch.tensor(len(rows), device=rows.device))):
            break
        new_rollouts, new_signals = draw(chosen_prompts(prompts, rows), number)
        steps = steps + new_rollouts.mask.sum()

        # Take over the new groups that have variation.
        better = varies(new_signals).nonzero().squeeze(-1)  # places among the R groups
        if len(better):
            replaced = rows[better]  # places among the B groups
            # Redrawn prompts may all lack an input, such as images, that other prompts have.
            kept_inputs = {name: value for name, value in rollouts.inputs.items() if name not in new_rollouts.inputs}
            rollouts = with_groups(rollouts, replaced, new_rollouts, better)
            rollouts = replace(rollouts, inputs=rollouts.inputs | kept_inputs)
            merged_signals: dict[str, Signal] = {}
            for name, signal in signals.items():
                new_signal = with_full_mask(new_signals[name])
                merged_signals[name] = with_groups(with_full_mask(signal), replaced, new_signal, better)
            signals = merged_signals
        groups += len(rows)
    return Redrawn(rollouts, signals, groups, steps)


def varying_groups(components: Components, weights: Tensor) -> Tensor:
    """``[B]`` bool, groups in which a component varies whose weight ``[J]`` is not 0."""
    informative_JB = group_statistics(components).informative
    is_weighted_J = weights != 0
    return (informative_JB & is_weighted_J[:, None]).any(0)


def chosen_prompts(prompts: PromptGroups, rows: Tensor) -> PromptGroups:
    """The prompts in `rows`."""
    columns: dict[str, Any] = {}
    for name, column in prompts.columns.items():
        if isinstance(column, Tensor):
            columns[name] = column[rows]
        else:
            columns[name] = [column[row] for row in rows.tolist()]
    return PromptGroups(prompts.index[rows], columns)


def with_full_mask(signal: Signal) -> Signal:
    """The signal with its mask, because a score may apply everywhere in one draw, and partly in another."""
    if signal.applicable is not None:
        return signal
    value = signal.value
    return replace(signal, applicable=torch.ones(value.shape[:2], dtype=torch.bool, device=value.device))


def with_groups(first: _D, rows: Tensor, others: _D, other_rows: Tensor) -> _D:
    """Copy `first`, with the groups `rows` ``[R]`` replaced by the groups `other_rows` ``[R]`` of `others`.

    Both answer the same prompts. Padding may differ.
    """
    replaced: dict[str, Any] = {}
    for field in fields(first):
        values = getattr(first, field.name)
        replaced[field.name] = _replace_rows(values, rows, getattr(others, field.name), other_rows)
    return replace(first, **replaced)


def _replace_rows(values: Any, rows: Tensor, others: Any, other_rows: Tensor) -> Any:
    """Copy the field `values` of rollouts or signals, with `rows` replaced by `other_rows` of the field `others`."""
    if isinstance(values, dict):
        # A reward function may give a column in some draws alone.
        common = {name: value for name, value in values.items() if name in others}
        return {name: _replace_rows(value, rows, others[name], other_rows) for name, value in common.items()}
    if isinstance(values, list):
        values = list(values)
        for row, other_row in zip(rows.tolist(), other_rows.tolist(), strict=True):
            values[row] = others[other_row]
        return values
    if values is None or values.shape[1] != others.shape[1]:  # the prompts, padded differently
        return values
    if values.dim() > 2 and values.shape[2] != others.shape[2]:
        longest = max(values.shape[2], others.shape[2])
        values = _pad_steps(values, longest)  # [B, G, longest, ...]
        others = _pad_steps(others, longest)
    # Not in place, because tensors of inference mode can't be written.
    dtype = torch.promote_types(values.dtype, others.dtype)  # a redrawn score may need float64
    return values.to(dtype).index_copy(0, rows, others[other_rows].to(dtype))


def _pad_steps(tensor: Tensor, length: int) -> Tensor:
    """``[B, G, T, ...]`` with zeros up to ``[B, G, length, ...]``."""
    # `pad` takes a pair (before, after) for each dimension, from the last to the first.
    no_padding_of_later_dimensions = (0, 0) * (tensor.dim() - 3)
    return pad(tensor, (*no_padding_of_later_dimensions, 0, length - tensor.shape[2]))
