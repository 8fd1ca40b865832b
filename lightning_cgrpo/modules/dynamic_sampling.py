"""Groups that teach nothing are sampled again (dynamic sampling), and take the place of the first ones."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from lightning_cgrpo.distributed import all_sum
from lightning_cgrpo.grpo.advantages import group_statistics
from lightning_cgrpo.objective.objective import Objective
from lightning_cgrpo.randomness import Stream
from lightning_cgrpo.rollout import PromptGroups, Rollouts, Signal

if TYPE_CHECKING:
    from lightning_cgrpo.modules.constrained_grpo import ConstrainedGRPO


def redraw(
    module: ConstrainedGRPO,
    prompts: PromptGroups,
    rollouts: Rollouts,
    signals: dict[str, Signal],
    rounds: int,
    update: int,
) -> tuple[Rollouts, dict[str, Signal], int]:
    """Sample every group again in which no component varies, until one does (DAPO, Yu et al., 2025).

    Such a group has no advantage. DAPO fills up the batch with other prompts; here the prompts stay, so that an update
    has the same prompts with and without, and a group of which no draw varies stays as it was.

    What is trained on is then no fair sample of the policy: rare behaviors are overrepresented. Rates are to be taken
    from the first draw.

    Args:
        rounds: how often a group is drawn again at most. Each round is as random as the first draw.
        update: names the randomness, with the prompt and the round.

    Returns:
        Rollouts and signals with the groups to train on, and how many groups were sampled in all rounds.
    """
    sampled = 0
    for number in range(rounds):
        rows = (~_informative(module.objective, signals)).nonzero().squeeze(-1)
        # All processes go on together, also without prompts: what samples may need them all.
        if not int(all_sum(torch.tensor(len(rows), device=rows.device))):
            break
        some = chosen_prompts(prompts, rows)
        others = module.sample(some, module.group_size, Stream.REDRAW, update * rounds + number)
        measured, _ = module.score(some, others)
        better = _informative(module.objective, measured).nonzero().squeeze(-1)
        if len(better):
            rollouts = with_groups(rollouts, rows[better], others, better)
            signals = with_signals(signals, rows[better], measured, better)
        sampled += len(rows)
    return rollouts, signals, sampled


def _informative(objective: Objective, signals: dict[str, Signal]) -> Tensor:
    """``[B]`` bool, groups in which any component varies."""
    return group_statistics(objective.components(signals)).informative.any(0)


def chosen_prompts(prompts: PromptGroups, rows: Tensor) -> PromptGroups:
    """The prompts in `rows`."""
    columns = {
        name: column[rows] if isinstance(column, Tensor) else [column[row] for row in rows.tolist()]
        for name, column in prompts.columns.items()
    }
    return PromptGroups(prompts.index[rows], columns)


def with_groups(rollouts: Rollouts, rows: Tensor, others: Rollouts, of: Tensor) -> Rollouts:
    """A copy of `rollouts` in which the groups `rows` are the groups `of` of `others`, answers to the same prompts.

    What belongs to steps may be padded to another length in either. Inputs that aren't of steps belong to the prompts
    and stay.

    Args:
        rows: ``[R]`` of B.
        of: ``[R]`` of the groups of `others`.
    """
    prompts, group_size, steps = rollouts.mask.shape
    inputs = {
        name: _put(tensor, rows, others.inputs[name], of)
        if tensor.shape[:3] == (prompts, group_size, steps)
        else tensor
        for name, tensor in rollouts.inputs.items()
    }
    return replace(
        rollouts,
        actions=_put(rollouts.actions, rows, others.actions, of),
        mask=_put(rollouts.mask, rows, others.mask, of),
        inputs=inputs,
        log_probs=_put(rollouts.log_probs, rows, others.log_probs, of),
        sampling_log_probs=_put(rollouts.sampling_log_probs, rows, others.sampling_log_probs, of),
        info={name: _put(value, rows, others.info[name], of) for name, value in rollouts.info.items()},
    )


def with_signals(signals: dict[str, Signal], rows: Tensor, others: dict[str, Signal], of: Tensor) -> dict[str, Signal]:
    """Likewise for what was measured of them."""
    return {name: _with_signal(signal, rows, others[name], of) for name, signal in signals.items()}


def _with_signal(signal: Signal, rows: Tensor, other: Signal, of: Tensor) -> Signal:
    # A score may say in one draw that it applies to all, and in the other where.
    everywhere = [torch.ones(s.value.shape[:2], dtype=torch.bool, device=s.value.device) for s in (signal, other)]
    applicable, others = (
        everywhere[n] if s.applicable is None else s.applicable for n, s in enumerate((signal, other))
    )
    return Signal(
        _put(signal.value, rows, other.value, of),
        _put(signal.count, rows, other.count, of),
        _put(signal.opportunities, rows, other.opportunities, of),
        None if signal.applicable is None and other.applicable is None else _put(applicable, rows, others, of),
    )


def _put(values: Any, rows: Tensor, others: Any, of: Tensor) -> Any:
    """`values`, a tensor ``[B, G, ...]`` or a list of B, with rows of others in it; None where either is."""
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
        )
    # Not in place: what was sampled under inference mode must not be written to.
    return values.index_copy(0, rows, others[of].to(values.dtype))
