"""Metrics of one update; docs/tensorboard.md lists the tags."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from lightning.pytorch import Trainer
from torch import Tensor

from lightning_cgrpo.core.distributed import all_sum_named, world
from lightning_cgrpo.modules.policy_steps import POLICY_TERMS, StepsTaken
from lightning_cgrpo.objective.group_statistics import GroupStatistics
from lightning_cgrpo.objective.measurement import behavior_metrics
from lightning_cgrpo.objective.moments import clustered_rates
from lightning_cgrpo.objective.objective import Objective
from lightning_cgrpo.objective.verdicts.clustered import ClusteredRate

SAMPLING_TERMS = ("ratio", "capped", "log_prob_gap")


def logging_due(trainer: Trainer, update: int) -> bool:
    """True for logged updates: every `log_every_n_steps`-th update, from the first."""
    interval: int = trainer.log_every_n_steps  # type: ignore[attr-defined] # set by Lightning's logger connector
    return update % max(interval, 1) == 0


class Stopwatch:
    """Seconds of the parts of an update, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def time(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - started


@dataclass(frozen=True)
class UpdateReport:
    """The metrics that an update logs, of all processes.

    Args:
        metrics: by tag.
        rates: rates of violation with intervals, by constraint.
        totals: all sums by name, for `StandstillDetector`.
    """

    metrics: dict[str, float]
    rates: dict[str, ClusteredRate]
    totals: dict[str, float]


def update_report(
    objective: Objective,
    sums: Mapping[str, Tensor],
    statistics: GroupStatistics,
    effective: Tensor,
    weights: Tensor,
    taken: StepsTaken,
    seconds: Mapping[str, float],
) -> UpdateReport:
    """Combine an update's numbers over all processes. Collective.

    Args:
        sums: `behavior_sums` of the first draw, and other sums; ``redrawn`` and ``masked`` give metrics.
        statistics: of the trained groups.
        effective: weights ``[J, B]`` in the trained groups.
        weights: ``[1 + K]`` of the reward and the constraints.
        taken: this process's optimizer steps.
        seconds: of the update's parts.
    """
    informative_JB = statistics.informative
    zero = torch.zeros((), device=informative_JB.device)
    sums = dict(sums)
    policy_terms = POLICY_TERMS if taken.terms else ()  # none while a critic warms up
    for name in policy_terms:
        sums[f"policy/{name}"] = torch.stack([terms[name] for terms in taken.terms]).mean()
    sums["groups"] = zero + informative_JB.shape[1]
    for row, name in enumerate(objective.component_names):
        sums[f"informative/{name}"] = informative_JB[row].sum()
        sums[f"effective/{name}"] = effective[row][informative_JB[row]].sum()
    # Zeros on a process without prompts, because all processes sum the same names.
    sums |= {f"sampling/{name}": taken.sampling.get(name, zero) for name in ("steps", "faults", *SAMPLING_TERMS)}
    total = all_sum_named(sums)

    # The objective: behaviors, weights, and how many groups teach each component.
    metrics = behavior_metrics(objective, total)
    for name, weight in zip(objective.weight_names, weights.tolist(), strict=True):
        metrics[f"multiplier/{name}"] = weight
    for name in objective.component_names:
        informative = total[f"informative/{name}"]
        metrics[f"groups/informative/{name}"] = informative / total["groups"]
        if informative:
            metrics[f"effective_weight/{name}"] = total[f"effective/{name}"] / informative
    # The policy's steps, and the engine that sampled.
    processes = world()[1]
    metrics |= {f"policy/{name}": total[f"policy/{name}"] / processes for name in policy_terms}
    if taken.grad_norms:
        metrics["policy/grad_norm"] = torch.stack(taken.grad_norms).mean().item()
    if "redrawn" in total:
        metrics["rollout/redrawn"] = total["redrawn"] / total["groups"]
    if "masked" in total:
        metrics["rollout/masked"] = total["masked"] / total["answers"]
    if total["sampling/steps"]:
        metrics |= {f"sampling/{name}": total[f"sampling/{name}"] / total["sampling/steps"] for name in SAMPLING_TERMS}
    if total["sampling/faults"]:
        metrics["faults/sampling_log_probs"] = total["sampling/faults"]
    if taken.skipped_steps:
        metrics["faults/skipped_steps"] = taken.skipped_steps
    # Seconds of the parts of the update, and throughput over their sum.
    metrics |= {f"time/{name}": value for name, value in seconds.items()}
    all_seconds = sum(seconds.values())
    metrics["throughput/answers_per_second"] = total["answers"] / all_seconds
    metrics["throughput/steps_per_second"] = total["steps"] / all_seconds
    rates = clustered_rates(objective.constraints, total, objective.means)
    return UpdateReport(metrics, rates, total)
