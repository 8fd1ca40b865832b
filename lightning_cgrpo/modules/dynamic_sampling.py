"""Dynamic sampling (`redraws` of ConstrainedGRPO): groups without an advantage are redrawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from lightning_cgrpo.distributed import all_sum
from lightning_cgrpo.rollout import PromptGroups, Rollouts, Signal, Signals

Draw = Callable[[PromptGroups, int], tuple[Rollouts, dict[str, Signal]]]
"""Samples and scores answers to prompts, with a round's randomness."""

Informative = Callable[[Signals], Tensor]
"""``[B]`` bool: groups whose signals give any advantage. May be collective."""


def redraw(
    draw: Draw,
    informative: Informative,
    prompts: PromptGroups,
    rollouts: Rollouts,
    signals: dict[str, Signal],
    rounds: int,
) -> tuple[Rollouts, dict[str, Signal], int]:
    """Redraw (sample again) groups without any advantage, until a draw has one (DAPO, Yu et al., 2025).

    DAPO fills the batch with other prompts; here the prompts stay. If no draw has one, the first draw stays. The result
    overrepresents rare behaviors, so measure rates on the first draw. Collective.

    Returns:
        Rollouts and signals for training, and the number of redrawn groups.
    """
    redrawn = 0
    for number in range(rounds):
        rows = (~informative(signals)).nonzero().squeeze(-1)  # [R]
        # Processes without prompts continue too, because the sampler may need all processes.
        if not int(all_sum(torch.tensor(len(rows), device=rows.device))):
            break
        others, measured = draw(chosen_prompts(prompts, rows), number)
        better = informative(measured).nonzero().squeeze(-1)
        if len(better):
            rollouts = with_groups(rollouts, rows[better], others, better)
            signals = with_signals(signals, rows[better], measured, better)
        redrawn += len(rows)
    return rollouts, signals, redrawn


def chosen_prompts(prompts: PromptGroups, rows: Tensor) -> PromptGroups:
    """The prompts in `rows`."""
    columns = {
        name: column[rows] if isinstance(column, Tensor) else [column[row] for row in rows.tolist()]
        for name, column in prompts.columns.items()
    }
    return PromptGroups(prompts.index[rows], columns)


def with_groups(rollouts: Rollouts, rows: Tensor, others: Rollouts, of: Tensor) -> Rollouts:
    """Copy `rollouts`, with the groups `rows` ``[R]`` replaced by the groups `of` ``[R]`` of `others`.

    Both answer the same prompts, so inputs without steps stay. Padding may differ.
    """
    inputs = {
        name: _put(tensor, rows, others.inputs[name], of) if tensor.shape[:3] == rollouts.mask.shape else tensor
        for name, tensor in rollouts.inputs.items()
    }
    return replace(
        rollouts,
        actions=_put(rollouts.actions, rows, others.actions, of),
        mask=_put(rollouts.mask, rows, others.mask, of),
        inputs=inputs,
        log_probs=_put(rollouts.log_probs, rows, others.log_probs, of),
        sampling_log_probs=_put(rollouts.sampling_log_probs, rows, others.sampling_log_probs, of),
        # A reward function may give a column in some draws alone.
        info={n: _put(value, rows, others.info[n], of) for n, value in rollouts.info.items() if n in others.info},
    )


def with_signals(signals: dict[str, Signal], rows: Tensor, others: dict[str, Signal], of: Tensor) -> dict[str, Signal]:
    """Copy `signals`, with the groups `rows` replaced by the groups `of` of `others`."""
    return {name: _with_signal(signal, rows, others[name], of) for name, signal in signals.items()}


def _with_signal(signal: Signal, rows: Tensor, other: Signal, of: Tensor) -> Signal:
    # A score may apply everywhere in one draw, and partly in the other.
    applicable, others = (
        torch.ones(s.value.shape[:2], dtype=torch.bool, device=s.value.device) if s.applicable is None else s.applicable
        for s in (signal, other)
    )
    return Signal(
        _put(signal.value, rows, other.value, of),
        _put(signal.count, rows, other.count, of),
        _put(signal.opportunities, rows, other.opportunities, of),
        None if signal.applicable is None and other.applicable is None else _put(applicable, rows, others, of),
    )


def _put(values: Any, rows: Tensor, others: Any, of: Tensor) -> Any:
    if values is None or others is None:
        return None
    if not isinstance(values, Tensor):
        values = list(values)
        for row, other in zip(rows.tolist(), of.tolist(), strict=True):
            values[row] = others[other]
        return values
    if values.dim() > 2 and values.shape[2] != others.shape[2]:
        longest = max(values.shape[2], others.shape[2])
        values, others = (
            pad(tensor, (*(0, 0) * (tensor.dim() - 3), 0, longest - tensor.shape[2])) for tensor in (values, others)
        )  # [B, G, longest, ...]
    # Not in place, because tensors of inference mode can't be written.
    return values.index_copy(0, rows, others[of].to(values.dtype))
