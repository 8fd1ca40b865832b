"""What is written of an update. The tags are an interface: docs/tensorboard.md lists them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from lightning.pytorch import Trainer
from torch import Tensor

from lightning_cgrpo.distributed import all_sum_named, world
from lightning_cgrpo.grpo.advantages import group_statistics
from lightning_cgrpo.grpo.losses import LossTerms
from lightning_cgrpo.objective.measurement import behavior_metrics, behavior_sums
from lightning_cgrpo.objective.objective import Components
from lightning_cgrpo.rollout import Examples, Rollouts, Signals

if TYPE_CHECKING:
    from lightning_cgrpo.modules.constrained_grpo import ConstrainedGRPO

POLICY_TERMS = ("loss", "kl", "entropy", "clip_fraction")
SAMPLING_TERMS = ("ratio", "capped", "log_prob_gap")


def logging_due(trainer: Trainer, update: int) -> bool:
    """Whether an update is one of those that are logged: every n-th from the first."""
    interval: int = trainer.log_every_n_steps  # type: ignore[attr-defined] # set by Lightning's logger connector
    return update % max(interval, 1) == 0


class UpdateReport:
    """Collects what is worth telling of one update, and writes it to every logger at once.

    Many calls of ``self.log`` would dominate a small update, so this goes straight to the loggers, once per
    `log_every_n_steps` updates; in the other updates nothing is computed. The values are those of this update alone,
    at its number (from 0): rates, rewards and weights are those of the policy and multipliers before the update.
    """

    def __init__(self, module: ConstrainedGRPO, update: int) -> None:
        self.module, self.update = module, update
        self.due = logging_due(module.trainer, update)
        self.learning_rate = module.learning_rate
        self.times: dict[str, float] = {}
        self.terms: list[dict[str, Tensor]] = []
        self.entropy = torch.zeros((), device=module.device)
        self.grad_norms: list[Tensor] = []
        self.skipped_steps = 0
        self.redrawn = 0
        self.sampling: dict[str, Tensor] = {}
        self.effective_weights: dict[str, Tensor] = {}

    @contextmanager
    def time(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.times[name] = time.perf_counter() - started

    def add_terms(self, terms: LossTerms, scale: float) -> None:
        """Adds a pass's terms to those of the minibatch that `next_minibatch` began."""
        self.entropy = self.entropy + scale * terms.entropy.detach()
        if self.due:
            for name in POLICY_TERMS:
                self.terms[-1][name] += scale * getattr(terms, name).detach()

    def next_minibatch(self) -> None:
        if self.due:
            zero = torch.zeros((), device=self.module.device)
            self.terms.append({name: zero.clone() for name in POLICY_TERMS})

    def add_sampling(self, examples: Examples) -> None:
        """What the probabilities of another engine were off by, once all examples have old log-probabilities."""
        reported = examples.targets.get("sampling_log_probs")
        if not self.due or reported is None:
            return
        known = examples.mask & reported.isfinite()
        difference = (examples.targets["old_log_probs"] - reported)[known]
        ratio, cap = difference.exp(), self.module.optimization.sampling_cap
        self.sampling = {
            "steps": known.sum(),
            "faults": (examples.mask & ~known).sum(),
            "ratio": ratio.sum(),
            "capped": (ratio > cap).sum(),
            "log_prob_gap": difference.abs().sum(),
        }

    def write(
        self,
        rollouts: Rollouts,
        signals: Signals,
        faults: Mapping[str, Tensor],
        components: Components,
        weights: Tensor,
    ) -> None:
        """Log, if it is this update's turn. Collective: every process takes part.

        Args:
            rollouts: the first draw, as are signals and faults.
            components: of what was trained on.
        """
        if not self.due:
            return
        module, objective = self.module, self.module.objective
        sums = behavior_sums(objective, signals, rollouts, faults)
        sums |= {f"policy/{name}": torch.stack([t[name] for t in self.terms]).mean() for name in POLICY_TERMS}
        statistics = group_statistics(components)
        effective = module.estimator.effective_weights(statistics, weights)
        informative = statistics.informative
        sums["groups"] = torch.tensor(float(informative.shape[1]), device=informative.device)
        for row, name in enumerate(objective.component_names):
            self.effective_weights[name] = effective[row][informative[row]]
            sums[f"informative/{name}"] = informative[row].sum()
            sums[f"effective/{name}"] = self.effective_weights[name].sum()
        sums["redrawn"] = torch.tensor(float(self.redrawn), device=informative.device)
        if module.optimization.mask_truncated:
            sums["masked"] = rollouts.info["truncated"].sum()
        # Also where this process, without prompts, has nothing to say: all sum the same names.
        none = torch.zeros((), device=informative.device)
        sums |= {f"sampling/{n}": self.sampling.get(n, none) for n in ("steps", "faults", *SAMPLING_TERMS)}
        total = all_sum_named(sums)

        metrics = behavior_metrics(objective, total)
        for name, constraint in objective.constraints.items():
            if constraint.bound is not None:
                metrics[f"threshold/{name}"] = constraint.bound
        metrics |= {
            f"multiplier/{name}": value
            for name, value in zip(objective.weight_names, module.weights.tolist(), strict=True)
        }
        for name in objective.component_names:
            metrics[f"groups/informative/{name}"] = total[f"informative/{name}"] / total["groups"]
            if total[f"informative/{name}"]:
                metrics[f"effective_weight/{name}"] = total[f"effective/{name}"] / total[f"informative/{name}"]
        metrics |= {f"policy/{name}": total[f"policy/{name}"] / world()[1] for name in POLICY_TERMS}
        if module.reference is None:
            del metrics["policy/kl"]
        if self.grad_norms:
            metrics["policy/grad_norm"] = torch.stack(self.grad_norms).mean().item()
        metrics["policy/learning_rate"] = self.learning_rate
        if module.collapse.collapsed_since is not None:
            metrics["policy/collapsed_since"] = module.collapse.collapsed_since
        if module.redraws:
            metrics["rollout/redrawn"] = total["redrawn"] / total["groups"]
        if module.optimization.mask_truncated:
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
        module.write_metrics(metrics, self.update)
