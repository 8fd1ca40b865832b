"""The policy's own signals: drift from the reference, and entropy."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from lightning_cgrpo.core.rollout import Examples, Rollouts, Signal
from lightning_cgrpo.grpo.losses import k3

RECORDED = "entropy", "kl"
"""Signals of `PolicyOutput`, which the passes of the first epoch record."""
MEASURED = "old_log_probs", "reference_log_probs", *RECORDED
"""Targets that an update computes, from which `own_signals` measures."""


def own_signals(names: Iterable[str], examples: Examples, rollouts: Rollouts) -> dict[str, Signal]:
    """Means over the steps of each answer, ``[B, G]``, from the passes that the update needed anyway.

    - ``kl``: KL(policy || reference) over all actions at every step, in nats per step
    - ``k3``: its estimate from the sampled actions' log-probabilities by `k3`
    - ``entropy``: of the policy's distributions, in nats per step

    The policy is the one that sampled. With several minibatches, ``kl`` and ``entropy`` are those of the first epoch.

    Args:
        names: of the signals to measure.
        examples: after the optimizer steps, with all targets.
    """
    targets, signals = examples.targets, {}
    for name in names:
        recorded = name in RECORDED
        values = targets[name] if recorded else k3(targets["reference_log_probs"] - targets["old_log_probs"])
        total, steps = (
            _by_answer(torch.where(examples.mask, part, 0), rollouts) for part in (values, torch.ones_like(values))
        )
        signals[name] = Signal(total / steps.clamp(min=1), applicable=steps > 0)
    return signals


def _by_answer(values: Tensor, rollouts: Rollouts) -> Tensor:
    """Sums ``[B, G]`` of values of the examples, ``[N]`` for steps or ``[N, T]`` for answers."""
    if values.dim() == 2:
        return values.sum(-1).view(rollouts.mask.shape[:2])
    steps = torch.zeros(rollouts.mask.shape, dtype=values.dtype, device=values.device)
    # Not by indexing with the mask, which would wait for the device.
    return steps.masked_scatter(rollouts.mask, values).sum(-1)
