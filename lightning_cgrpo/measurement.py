"""What the user sees of a batch: rewards, behavior rates, lengths. First as sums, which add up over batches and
processes, then as metrics under their tags.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from lightning_cgrpo.distributed import all_sum_named
from lightning_cgrpo.objective import Objective
from lightning_cgrpo.rollout import Rollouts, Signal, Signals


def isolate_faults(signals: Signals) -> tuple[dict[str, Signal], dict[str, Tensor]]:
    """Take out values (and counts) that are not finite: they are faults, not statements.

    Returns:
        The signals, in which faulty entries do not apply, and the number of faults by signal (scalars).
    """
    clean, faults = {}, {}
    for name, signal in signals.items():
        finite = signal.value.isfinite()
        for counts in (signal.count, signal.opportunities):
            if counts is not None:
                finite &= counts.isfinite()
        if signal.applicable is not None:
            finite |= ~signal.applicable
        faulty = ~finite
        faults[name] = faulty.sum()
        if bool(faults[name]):
            applicable = finite if signal.applicable is None else signal.applicable & finite
            signal = replace(
                signal,
                value=torch.where(finite, signal.value, 0),
                count=None if signal.count is None else torch.where(finite, signal.count, 0),
                opportunities=None if signal.opportunities is None else torch.where(finite, signal.opportunities, 0),
                applicable=applicable,
            )
        clean[name] = signal
    return clean, faults


def behavior_sums(
    objective: Objective, signals: Signals, rollouts: Rollouts, faults: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """Sums over a batch (scalars), from which `behavior_metrics` makes means and rates.

    Args:
        faults: of `isolate_faults`; entries that do not apply for a fault are counted as that and not as inapplicable.
    """
    violations, opportunities = objective.violations(signals)
    sums = {"answers": torch.tensor(float(rollouts.mask[..., 0].numel())), "steps": rollouts.mask.sum()}
    for row, name in enumerate(objective.constraints):
        sums[f"violations/{name}"], sums[f"opportunities/{name}"] = violations[row], opportunities[row]
    for name in objective.rewards:
        signal = signals[name]
        if signal.applicable is None:
            sums[f"sum/{name}"] = signal.value.sum()
            sums[f"count/{name}"] = torch.tensor(float(signal.value.numel()))
        else:
            sums[f"sum/{name}"] = torch.where(signal.applicable, signal.value, 0).sum()
            sums[f"count/{name}"] = signal.applicable.sum()
    device = rollouts.mask.device
    for name in objective.signal_names:
        applicable = signals[name].applicable
        absent = torch.zeros(()) if applicable is None else (~applicable).sum()
        if faults is not None:
            sums[f"faults/{name}"] = faults[name]
            absent = absent - faults[name]
        sums[f"inapplicable/{name}"] = absent
    return {name: value.to(device) for name, value in sums.items()}


def behavior_metrics(objective: Objective, sums: Mapping[str, float]) -> dict[str, float]:
    """Metrics by tag: ``rate/<constraint>`` in the user's orientation, ``reward/mean``, ``reward/<signal>`` where there
    are several, ``rollout/length``; ``inapplicable/<signal>`` (a share) and ``faults/<signal>`` (a count) where there
    were any. What was never observed is left out.
    """
    metrics = {}
    rewards = {name: _ratio(sums[f"sum/{name}"], sums[f"count/{name}"]) for name in objective.rewards}
    metrics["reward/mean"] = sum(weight * rewards[name] for name, weight in objective.rewards.items())
    if len(rewards) > 1:
        metrics |= {f"reward/{name}": value for name, value in rewards.items()}
    for name, constraint in objective.constraints.items():
        rate = _ratio(sums[f"violations/{name}"], sums[f"opportunities/{name}"])
        metrics[f"rate/{name}"] = constraint.shown_rate(rate)
    metrics["rollout/length"] = _ratio(sums["steps"], sums["answers"])
    for name in objective.signal_names:
        if faults := sums.get(f"faults/{name}"):
            metrics[f"faults/{name}"] = faults
        if sums[f"inapplicable/{name}"]:
            metrics[f"inapplicable/{name}"] = sums[f"inapplicable/{name}"] / sums["answers"]
    return {tag: value for tag, value in metrics.items() if not math.isnan(value)}


class RunningSums:
    """Named sums over the batches of an evaluation."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}

    def clear(self) -> None:
        self._sums = {}

    def add(self, sums: Mapping[str, Tensor]) -> None:
        """Add a batch's sums."""
        for name, value in sums.items():
            self._sums[name] = self._sums.get(name, 0) + value.double()

    def total(self) -> dict[str, float]:
        """The sums over all batches and processes."""
        return all_sum_named(self._sums)


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else math.nan
