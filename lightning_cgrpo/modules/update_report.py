"""Metrics of one update; docs/tensorboard.md lists the tags."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from lightning.pytorch import Trainer
from torch import Tensor

from lightning_cgrpo.core.distributed import all_sum_named, world
from lightning_cgrpo.core.rollout import Examples
from lightning_cgrpo.grpo.losses import LossTerms
from lightning_cgrpo.grpo.minibatches import Optimization
from lightning_cgrpo.grpo.sampling_correction import SamplingCorrection
from lightning_cgrpo.objective.group_statistics import GroupStatistics
from lightning_cgrpo.objective.measurement import behavior_metrics, clustered_rates
from lightning_cgrpo.objective.objective import Objective
from lightning_cgrpo.objective.verdicts.clustered import ClusteredRate

POLICY_TERMS = ("loss", "kl", "entropy", "clip_fraction")
SAMPLING_TERMS = ("ratio", "capped", "log_prob_gap")


def logging_due(trainer: Trainer, update: int) -> bool:
    """True for logged updates: every `log_every_n_steps`-th update, from the first."""
    interval: int = trainer.log_every_n_steps  # type: ignore[attr-defined] # set by Lightning's logger connector
    return update % max(interval, 1) == 0


class UpdateReport:
    """Collects the numbers of one update; `metrics` combines all processes.

    Unless the update is `due` to be logged, only skipped steps are kept.
    """

    def __init__(self, due: bool, optimization: Optimization, device: torch.device) -> None:
        self.due, self.optimization = due, optimization
        self.times: dict[str, float] = {}
        self.terms: list[dict[str, Tensor]] = []
        self.zero = torch.zeros((), device=device)
        self.grad_norms: list[Tensor] = []
        self.skipped_steps = 0
        self.redrawn: int | None = None
        self.sampling: dict[str, Tensor] = {}
        self.rates: dict[str, ClusteredRate] = {}
        self.totals: dict[str, float] = {}

    @contextmanager
    def time(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.times[name] = time.perf_counter() - started

    def next_minibatch(self) -> None:
        if self.due:
            self.terms.append({name: self.zero.clone() for name in POLICY_TERMS})

    def add_terms(self, terms: LossTerms, scale: float) -> None:
        if self.due:
            for name in POLICY_TERMS:
                self.terms[-1][name] += scale * getattr(terms, name).detach()

    def add_sampling(self, examples: Examples) -> None:
        """Compare the sampling engine's probabilities with the policy's probabilities."""
        reported = examples.targets.get("sampling_log_probs")
        if not self.due or reported is None:
            return
        compared = examples.mask & reported.isfinite()
        old = examples.targets["old_log_probs"]
        correction = self.optimization.sampling or SamplingCorrection(high=None)
        ratio = correction.ratios(old, reported, examples.mask)[compared]
        self.sampling = {
            "steps": compared.sum(),
            "faults": (examples.mask & ~compared).sum(),
            "ratio": ratio.sum(),
            "capped": correction.outside(ratio).sum(),
            "log_prob_gap": (old - reported)[compared].abs().sum(),
        }

    def metrics(
        self,
        objective: Objective,
        sums: Mapping[str, Tensor],
        statistics: GroupStatistics,
        effective: Tensor,
        weights: Tensor,
    ) -> dict[str, float]:
        """Metrics by tag, of all processes. Collective.

        Args:
            sums: `behavior_sums` of the first draw, perhaps the number of ``masked`` answers, and other numbers; the
                sums over all processes are left in `totals`.
            statistics: of the trained groups.
            effective: weights ``[J, B]`` in the trained groups.
        """
        sums = dict(sums)
        learned = POLICY_TERMS if self.terms else ()  # none while a critic warms up
        sums |= {f"policy/{name}": torch.stack([t[name] for t in self.terms]).mean() for name in learned}
        informative = statistics.informative  # [J, B]
        sums["groups"] = self.zero + informative.shape[1]
        for row, name in enumerate(objective.component_names):
            sums[f"informative/{name}"] = informative[row].sum()
            sums[f"effective/{name}"] = effective[row][informative[row]].sum()
        if self.redrawn is not None:
            sums["redrawn"] = self.zero + self.redrawn
        # Zeros on a process without prompts, because all processes sum the same names.
        sums |= {f"sampling/{n}": self.sampling.get(n, self.zero) for n in ("steps", "faults", *SAMPLING_TERMS)}
        self.totals = total = all_sum_named(sums)

        metrics = behavior_metrics(objective, total)
        self.rates = clustered_rates(objective.constraints, total, objective.means)
        named = zip(objective.weight_names, weights.tolist(), strict=True)
        metrics |= {f"multiplier/{name}": value for name, value in named}
        for name in objective.component_names:
            metrics[f"groups/informative/{name}"] = total[f"informative/{name}"] / total["groups"]
            if total[f"informative/{name}"]:
                metrics[f"effective_weight/{name}"] = total[f"effective/{name}"] / total[f"informative/{name}"]
        metrics |= {f"policy/{name}": total[f"policy/{name}"] / world()[1] for name in learned}
        if self.grad_norms:
            metrics["policy/grad_norm"] = torch.stack(self.grad_norms).mean().item()
        if "redrawn" in total:
            metrics["rollout/redrawn"] = total["redrawn"] / total["groups"]
        if "masked" in total:
            metrics["rollout/masked"] = total["masked"] / total["answers"]
        if total["sampling/steps"]:
            metrics |= {f"sampling/{n}": total[f"sampling/{n}"] / total["sampling/steps"] for n in SAMPLING_TERMS}
        if total["sampling/faults"]:
            metrics["faults/sampling_log_probs"] = total["sampling/faults"]
        if self.skipped_steps:
            metrics["faults/skipped_steps"] = self.skipped_steps
        seconds = sum(self.times.values())
        metrics |= {f"time/{name}": value for name, value in self.times.items()}
        metrics["throughput/answers_per_second"] = total["answers"] / seconds
        metrics["throughput/steps_per_second"] = total["steps"] / seconds
        return metrics
