"""ConstrainedGRPO: policy, reference and update."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lightning_cgrpo.core.copies import handed
from lightning_cgrpo.core.distributed import means
from lightning_cgrpo.core.errors import UserError, expect
from lightning_cgrpo.core.prompts.source import PromptLoader
from lightning_cgrpo.core.randomness import Stream
from lightning_cgrpo.core.rollout import PromptGroups, Rollouts, Signal, Signals
from lightning_cgrpo.core.user_code import UserCode
from lightning_cgrpo.grpo.advantages import AdvantageEstimator, ScalarizedAdvantages
from lightning_cgrpo.grpo.critic.critic_advantages import CriticAdvantages
from lightning_cgrpo.grpo.minibatches import LRSchedulerCallable, Optimization, OptimizerCallable
from lightning_cgrpo.modules.dynamic_sampling import redraw, varying
from lightning_cgrpo.modules.policy_steps import PolicySteps
from lightning_cgrpo.modules.rollout_module import ScoredPrompts
from lightning_cgrpo.modules.standstill import StandstillDetector
from lightning_cgrpo.modules.update_report import UpdateReport, logging_due
from lightning_cgrpo.objective.group_statistics import GroupStatistics, group_statistics
from lightning_cgrpo.objective.measurement import behavior_sums, isolate_faults
from lightning_cgrpo.objective.objective import Objective, over_prompts
from lightning_cgrpo.policies.normalized_observations import learn_observations
from lightning_cgrpo.policies.policy import Policy, Reference
from lightning_cgrpo.policies.sharding import in_turn, shard
from lightning_cgrpo.samplers.sampler import Sampler
from lightning_cgrpo.tasks.task import Task


class UpdateOutput(ScoredPrompts):
    """Output of a training step on one process, with the trained rollouts and signals.

    Attributes:
        advantages: ``[B, G]`` or ``[B, G, T]``.
        measured: signals of the first draw.
        violations: counts ``[K]`` in the first draw.
        opportunities: counts ``[K]`` in the first draw.
        steps: all sampled steps, of redrawn groups too.
    """

    advantages: Tensor
    measured: dict[str, Signal]
    violations: Tensor
    opportunities: Tensor
    steps: Tensor


class ConstrainedGRPO(PolicySteps):
    """Group-relative policy optimization of a reward under behavior-rate constraints.

    A training step is an *update*: sample G answers per prompt, score the answers, estimate advantages with the current
    `weights`, and take all optimizer steps. Lightning's ``global_step``, ``max_steps`` and intervals count updates.

    Callbacks (`WeightSetter`) set the buffer ``weights [1 + K]``: the reward's weight, then the constraints' weights.
    Without enforced constraints the weight stays (1,), which is plain GRPO.

    Args:
        policy: trained policy.
        sampler: samples answers to prompts.
        task: scores answers into signals.
        objective: reward and constraints.
        optimizer: function of parameters.
        estimator: computes advantages; `CriticAdvantages` also learns a critic, after the policy's steps.
        lr_scheduler: function of the optimizer; steps once per update.
        optimization: epochs, minibatches, clipping, KL and entropy.
        group_size: answers per prompt (G) in training.
        redraws: rounds of dynamic sampling, see `redraw`; logged rates use the first draw.
        eval_group_size: answers per prompt in evaluation.
        seed: by default the seed of `lightning.seed_everything`.

    Raises:
        ObjectiveError: objective and task don't fit; raised before the policy's weights are loaded.
    """

    def __init__(
        self,
        policy: Policy,
        sampler: Sampler,
        task: Task,
        objective: Objective,
        optimizer: OptimizerCallable,
        estimator: AdvantageEstimator | None = None,
        lr_scheduler: LRSchedulerCallable | None = None,
        optimization: Optimization = Optimization(),  # noqa: B008 (frozen)
        group_size: int = 8,
        redraws: int = 0,
        eval_group_size: int = 1,
        seed: int | None = None,
    ) -> None:
        super().__init__(policy, sampler, task, objective, optimizer, lr_scheduler, eval_group_size, seed)
        expect(isinstance(group_size, int), "group_size", "an integer", group_size)
        expect(group_size >= 2, "group_size", "at least 2", group_size)
        expect(redraws >= 0, "redraws", "at least 0", redraws)
        self.estimator: AdvantageEstimator = ScalarizedAdvantages() if estimator is None else estimator
        self.reference: Reference | None = None
        self.optimization = optimization
        self.group_size, self.redraws = group_size, redraws
        initial = torch.zeros(len(objective.weight_names), dtype=torch.float64)
        initial[0] = 1
        # Not in checkpoints, because the callback that sets the weights restores them.
        self.register_buffer("weights", initial, persistent=False)
        self.has_weight_setter = False
        self.thresholds = {name: float(c.bound.threshold or 0) for name, c in objective.bounded.items()}
        """Thresholds in force, in the user's orientation; `LagrangianCallback` moves those with a schedule."""
        self.standstill = StandstillDetector(objective)

    # ------------------------------------------------------------------ set-up

    def setup(self, stage: str) -> None:
        super().setup(stage)
        if stage == "fit" and self.objective.constrained and not self.has_weight_setter:
            names = ", ".join(self.objective.constrained)
            raise UserError(
                f"Expected a callback that weights the constraints ({names}), but got none, try LagrangianCallback "
                "(callbacks.multipliers), or role: monitor, which measures a constraint without enforcing it."
            )

    def configure_model(self) -> None:
        with in_turn(self):
            super().configure_model()
            # DistributedDataParallel would send buffers that all processes have in every update.
            buffers = [name for name, _ in self.named_buffers() if not name.startswith("policy.")]
            self._ddp_params_and_buffers_to_ignore = buffers
            if self.critic_advantages is not None and self._trainer is not None and self.trainer.state.fn == "fit":
                self.critic_advantages.critic.load(len(self.objective.component_names))
                # It would also wait for the critic's gradients in the policy's backward pass.
                critic = [f"estimator.{name}" for name, _ in self.critic_advantages.named_parameters()]
                self._ddp_params_and_buffers_to_ignore = [*buffers, *critic]
            shard(self)

    @property
    def critic_advantages(self) -> CriticAdvantages | None:
        """The estimator, if it has a critic."""
        return self.estimator if isinstance(self.estimator, CriticAdvantages) else None

    def configure_optimizers(self) -> Any:
        policy = super().configure_optimizers()
        if self.critic_advantages is None:
            return policy
        optimizers, schedules = policy if isinstance(policy, tuple) else ([policy], [])
        optimizer, schedule = self.critic_advantages.configure_optimizer()
        return [*optimizers, optimizer], [*schedules, *([] if schedule is None else [schedule])]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        checkpoint["standstill"] = self.standstill.state_dict()
        checkpoint["estimator"] = self.estimator.running_state()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if "standstill" in checkpoint:  # not after supervised fine-tuning
            self.standstill.load_state_dict(checkpoint["standstill"])
        self.estimator.load_running_state(checkpoint.get("estimator", {}))
        # Trained with a KL term or a critic, used without; a sharded checkpoint has its weights elsewhere.
        unused = () if self.reference is not None else ("reference.",)
        if not any(name.startswith("estimator.") for name in self.state_dict()):
            unused = (*unused, "estimator.")
        if (state := checkpoint.get("state_dict")) is not None:
            checkpoint["state_dict"] = {name: t for name, t in state.items() if not name.startswith(unused)}
        super().on_load_checkpoint(checkpoint)

    def on_train_start(self) -> None:
        super().on_train_start()
        for loaders in (self.trainer.train_dataloader, self.trainer.val_dataloaders):
            for loader in loaders if isinstance(loaders, (list, tuple)) else [loaders]:
                if isinstance(loader, PromptLoader):
                    self.sampler.check(self.policy, loader.source)

    # ------------------------------------------------------------------ an update

    @UserCode("training_step")
    def training_step(self, prompts: PromptGroups, batch_idx: int) -> UpdateOutput:
        """One update: sample, measure, redraw, estimate advantages, train the policy, learn values, report."""
        update, learning_rate = self.trainer.global_step, self.learning_rate
        report = UpdateReport(logging_due(self.trainer, update), self.optimization, self.device)
        with report.time("rollout"):
            sampled = self.sample(prompts, self.group_size, Stream.ROLLOUT, update)
            self._steps = sampled.mask.sum()
        with report.time("score"):
            measured, faults = self.score(prompts, sampled)
            logged = self.task_metrics()
        rollouts, signals, weights = sampled, measured, self.objective.component_weights(self.weights)
        if self.redraws:
            with report.time("redraw"):
                rollouts, signals, report.redrawn = self._redraw(prompts, sampled, measured, weights, update)
        with report.time("optimize"):
            components = self.objective.components(signals)
            statistics = group_statistics(components)
            advantages = self.estimator(rollouts, statistics, weights)
            policy_signals = self._train_policy(rollouts, advantages, update, report)
        if self.critic_advantages is not None:
            with report.time("critic"):
                self._learn_values(self.critic_advantages, update)
        for network in (self.policy, self.critic_advantages):
            if network is not None:
                learn_observations(network, sampled)
        clean, policy_faults = isolate_faults(policy_signals)
        measured, faults = {**measured, **clean}, {**faults, **policy_faults}
        counts = self.objective.counts(measured)
        violations, opportunities = over_prompts(counts, self.objective.constrained)
        if not self.estimator.trains_policy(update):  # Without opportunities no multiplier moves.
            violations, opportunities = torch.zeros_like(violations), torch.zeros_like(opportunities)
        if report.due:
            metrics = self._metrics_of_update(report, sampled, measured, faults, counts, statistics, len(logged or ()))
            if self.estimator.trains_policy(update):
                self.standstill.check(update, report.totals, stepped=bool(report.grad_norms))
            if report.totals["logged"]:  # by any process
                metrics |= {f"functions/{name}": value for name, value in means(logged).items()}
            metrics["policy/learning_rate"] = learning_rate
            self._write_metrics(metrics, update)
        output: UpdateOutput = {
            "prompts": prompts,
            "rollouts": rollouts,
            "signals": signals,
            "advantages": advantages,
            "measured": measured,
            "violations": violations,
            "opportunities": opportunities,
            "steps": self._steps,
        }
        return handed(output)

    def _redraw(
        self, prompts: PromptGroups, rollouts: Rollouts, signals: dict[str, Signal], weights: Tensor, update: int
    ) -> tuple[Rollouts, dict[str, Signal], int]:
        """Dynamic sampling: groups without variation are drawn again, see `redraw`."""

        def draw(some: PromptGroups, number: int) -> tuple[Rollouts, dict[str, Signal]]:
            answers = self.sample(some, self.group_size, Stream.REDRAW, update * self.redraws + number)
            self._steps = self._steps + answers.mask.sum()
            return answers, self.score(some, answers)[0]

        def varies(some: Signals) -> Tensor:
            return varying(self.objective.components(some), weights)

        redrawn = redraw(draw, varies, prompts, rollouts, signals, self.redraws)
        self.task_metrics()  # of redrawn answers
        return redrawn

    def _train_policy(
        self, rollouts: Rollouts, advantages: Tensor, update: int, report: UpdateReport
    ) -> dict[str, Signal]:
        """Take the optimizer steps, and return the policy's own signals."""
        if self.estimator.trains_policy(update):
            return self._optimize(rollouts, advantages, update, report)
        self.take_step()  # without gradients: counts the update, and moves no weight
        return {}

    def _learn_values(self, critic_advantages: CriticAdvantages, update: int) -> None:
        optimizer = self.trainer.optimizers[1]  # not Lightning's wrapper, whose steps are counted as updates
        critic_advantages.learn(optimizer, self.group_size, self.seed, update)
        if (schedule := self.schedule(optimizer)) is not None:
            schedule.step()

    # ------------------------------------------------------------------ metrics

    def _metrics_of_update(
        self,
        report: UpdateReport,
        rollouts: Rollouts,
        signals: Signals,
        faults: dict[str, Tensor],
        counts: dict[str, Tensor],
        statistics: GroupStatistics,
        logged: int,
    ) -> dict[str, float]:
        """Metrics by tag. `statistics` are of the trained groups, other arguments of the first draw. Collective."""
        weights = self.objective.component_weights(self.weights)
        effective = self.estimator.effective_weights(statistics, weights)
        sums = behavior_sums(self.objective, signals, rollouts, faults, counts)
        if self.optimization.mask_truncated:
            sums["masked"] = rollouts.info["truncated"].sum()
        sums["logged"] = report.zero + logged
        metrics = report.metrics(self.objective, sums, statistics, effective, self.weights)
        metrics |= {f"threshold/{name}": value for name, value in self.thresholds.items()}
        if self.reference is None:
            metrics.pop("policy/kl", None)
        metrics |= self.estimator.metrics(self.objective.component_names, weights)
        self.latest_rates = report.rates
        return metrics

    def _write_metrics(self, metrics: dict[str, float], update: int) -> None:
        """Send metrics in one call, because `log` per metric is slow."""
        self.latest_metrics = metrics
        values = torch.tensor(list(metrics.values()), dtype=torch.float64).unbind()
        self.trainer.callback_metrics.update(zip(metrics, values, strict=True))
        for logger in self.loggers:
            logger.log_metrics(metrics, step=update)
