"""The policy's own signals: drift from the reference, and entropy."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from lightning_cgrpo.core.rollout import Examples, Rollouts, Signal

RECORDED = "entropy", "kl"
"""The policy's own signals, outputs of `PolicyOutput`, which the passes of the first epoch record as targets."""


def own_signals(names: Iterable[str], examples: Examples, rollouts: Rollouts) -> dict[str, Signal]:
    """Means over the steps of each answer, ``[B, G]``, from the passes that the update needed anyway.

    - ``kl``: KL(policy || reference) over all actions at every step, in nats per step
    - ``entropy``: of the policy's distributions, in nats per step

    The policy is the one that sampled. With several minibatches, ``kl`` and ``entropy`` are those of the first epoch.

    Args:
        names: of the signals to measure.
        examples: after the optimizer steps, with all targets.
    """
    signals: dict[str, Signal] = {}
    for name in names:
        values = examples.targets[name]
        total = _sum_by_answer(torch.where(examples.mask, values, 0), rollouts)  # [B, G]
        steps = _sum_by_answer(torch.where(examples.mask, torch.ones_like(values), 0), rollouts)  # [B, G]
        signals[name] = Signal(total / steps.clamp(min=1), applicable=steps > 0)
    return signals


def _sum_by_answer(values: Tensor, rollouts: Rollouts) -> Tensor:
    """Sums ``[B, G]`` of values of the examples, ``[N]`` for steps or ``[N, T]`` for answers."""
    if values.dim() == 2:
        return values.sum(-1).view(rollouts.mask.shape[:2])
    # Lay the steps out as [B, G, T]. Not by indexing with the mask, which would wait for the device.
    steps = torch.zeros(rollouts.mask.shape, dtype=values.dtype, device=values.device)
    return steps.masked_scatter(rollouts.mask, values).sum(-1)
