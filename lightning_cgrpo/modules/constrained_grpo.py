"""ConstrainedGRPO: policy, reference and update."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lightning_cgrpo.core.copies import copied_on_reading
from lightning_cgrpo.core.distributed import gather_means
from lightning_cgrpo.core.errors import UserError, expect, expect_kinds
from lightning_cgrpo.core.prompts.source import PromptLoader
from lightning_cgrpo.core.randomness import Stream
from lightning_cgrpo.core.rollout import PromptGroups, Rollouts, Signal, Signals
from lightning_cgrpo.core.user_code import UserCode
from lightning_cgrpo.grpo.advantages import AdvantageEstimator, ScalarizedAdvantages
from lightning_cgrpo.grpo.critic.critic_advantages import CriticAdvantages
from lightning_cgrpo.grpo.minibatches import LRSchedulerCallable, Optimization, OptimizerCallable
from lightning_cgrpo.modules.dynamic_sampling import Redrawn, redraw, varying_groups
from lightning_cgrpo.modules.policy_steps import PolicySteps, StepsTaken
from lightning_cgrpo.modules.rollout_module import RolloutModule, ScoredPrompts
from lightning_cgrpo.modules.standstill import StandstillDetector
from lightning_cgrpo.modules.update_report import Stopwatch, logging_due, update_report
from lightning_cgrpo.objective.faults import isolate_faults
from lightning_cgrpo.objective.group_statistics import GroupStatistics, group_statistics
from lightning_cgrpo.objective.measurement import behavior_sums
from lightning_cgrpo.objective.objective import Objective, over_prompts
from lightning_cgrpo.policies.normalized_observations import learn_observations
from lightning_cgrpo.policies.onednn import faster_products
from lightning_cgrpo.policies.policy import Policy, Reference
from lightning_cgrpo.policies.precision import casts_weights
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


class ConstrainedGRPO(RolloutModule):
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

    weights: Tensor

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
        if estimator is None:
            estimator = ScalarizedAdvantages()
        expect_kinds(estimator=(estimator, AdvantageEstimator), optimization=(optimization, Optimization))
        expect(isinstance(group_size, int), "group_size", "an integer", group_size)
        expect(group_size >= 2, "group_size", "at least 2", group_size)
        expect(redraws >= 0, "redraws", "at least 0", redraws)
        self.estimator: AdvantageEstimator = estimator
        self.reference: Reference | None = None
        self.optimization = optimization
        self.group_size = group_size
        self.redraws = redraws
        initial_weights = torch.zeros(len(objective.weight_names), dtype=torch.float64)  # [1 + K]
        initial_weights[0] = 1
        # Not in checkpoints, because the callback that sets the weights restores them.
        self.register_buffer("weights", initial_weights, persistent=False)
        self.has_weight_setter = False
        bounds = {name: constraint.bound for name, constraint in objective.bounded.items()}
        self.thresholds = {name: float(bound.threshold or 0) for name, bound in bounds.items()}
        """Thresholds in force, in the user's orientation; `LagrangianCallback` moves those with a schedule."""
        self.held: dict[str, float] | None = None
        """Rates at which a dual holds stalled constraints, in the user's orientation; None without a dual."""
        self.policy_steps = PolicySteps(
            optimization, objective.policy_signals.values(), group_size, self.manual_optimization
        )
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
            self.load_policy()
            self.policy_steps.without_dropout()
            if self.policy_steps.needs_reference and self.reference is None:
                self.reference = self.policy_steps.make_reference(casts_weights(self._trainer))
            # DistributedDataParallel would send buffers that all processes have in every update.
            ignored_by_ddp = [name for name, _ in self.named_buffers() if not name.startswith("policy.")]
            if self.critic_advantages is not None and self._is_fitting():
                self.critic_advantages.critic.load(len(self.objective.component_names))
                # It would also wait for the critic's gradients in the policy's backward pass.
                ignored_by_ddp += [f"estimator.{name}" for name, _ in self.critic_advantages.named_parameters()]
            self._ddp_params_and_buffers_to_ignore = ignored_by_ddp
            shard(self)

    @property
    def critic_advantages(self) -> CriticAdvantages | None:
        """The estimator, if it has a critic."""
        return self.estimator if isinstance(self.estimator, CriticAdvantages) else None

    def configure_optimizers(self) -> Any:
        """The policy's optimizer and schedule, then the critic's, in the forms that Lightning's hook may return."""
        of_policy = super().configure_optimizers()
        if self.critic_advantages is None:
            return of_policy
        if isinstance(of_policy, tuple):
            optimizers, schedules = of_policy
        else:
            optimizers = [of_policy]
            schedules = []
        critic_optimizer, critic_schedule = self.critic_advantages.configure_optimizer()
        critic_schedules = [] if critic_schedule is None else [critic_schedule]
        return [*optimizers, critic_optimizer], [*schedules, *critic_schedules]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        checkpoint["standstill"] = self.standstill.state_dict()
        checkpoint["estimator"] = self.estimator.running_state()
        checkpoint["components"] = list(self.objective.component_names)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if "standstill" in checkpoint:  # not after supervised fine-tuning
            self.standstill.load_state_dict(checkpoint["standstill"])
        self.estimator.load_running_state(self._running_state_of(checkpoint))
        # A run with a KL term or a critic saves weights that a module without them does not have.
        unused_prefixes = []
        if self.reference is None:
            unused_prefixes.append("reference.")
        if not any(name.startswith("estimator.") for name in self.state_dict()):
            unused_prefixes.append("estimator.")
        saved = checkpoint.get("state_dict")
        if saved is not None:  # a sharded checkpoint has its weights elsewhere
            unused = tuple(unused_prefixes)
            checkpoint["state_dict"] = {name: tensor for name, tensor in saved.items() if not name.startswith(unused)}
        super().on_load_checkpoint(checkpoint)

    def _running_state_of(self, checkpoint: dict[str, Any]) -> dict[str, Tensor]:
        """The estimator's state ``[J]`` in a checkpoint, in the order of this objective's components.

        Raises:
            UserError: the components of a critic, which has a head for each, differ.
        """
        state: dict[str, Tensor] = checkpoint.get("estimator", {})
        names = list(self.objective.component_names)
        saved_names = checkpoint.get("components", names)  # none after supervised fine-tuning
        if saved_names == names:
            return state
        if self.critic_advantages is not None and self._is_fitting():
            raise UserError(
                f"Expected the components of the checkpoint, {saved_names}, because the critic has a head for each, "
                f"but got {names}, try the same rewards and constraints in the same order."
            )
        if set(saved_names) != set(names):
            return {}  # the deviations of new components are not known, and all begin anew
        order = [saved_names.index(name) for name in names]
        return {key: value[order] for key, value in state.items()}

    def on_train_start(self) -> None:
        super().on_train_start()
        loaders: list[Any] = []
        for loader_or_list in (self.trainer.train_dataloader, self.trainer.val_dataloaders):
            if isinstance(loader_or_list, (list, tuple)):
                loaders.extend(loader_or_list)
            else:
                loaders.append(loader_or_list)
        for loader in loaders:
            if isinstance(loader, PromptLoader):
                self.sampler.check(self.policy, loader.source)

    # ------------------------------------------------------------------ an update

    @UserCode("training_step")
    def training_step(self, prompts: PromptGroups, batch_idx: int) -> UpdateOutput:
        """One update of Constrained GRPO; the dual's step follows in `LagrangianCallback.on_train_batch_end`."""
        update = self.trainer.global_step
        learning_rate = self.manual_optimization.learning_rate
        stopwatch = Stopwatch()

        # 1. Sample G answers to each of the B prompts.
        with stopwatch.time("rollout"):
            sampled = self.sample(prompts, self.group_size, Stream.ROLLOUT, update)

        # 2. Measure each answer: rewards, and the behaviors that constraints bound.
        with stopwatch.time("score"):
            measured, faults = self.score(prompts, sampled)
            task_metrics = self.task_metrics()

        # 3. With dynamic sampling, draw the groups again that teach nothing. Rates are those of the first draw.
        weights_J = self.objective.component_weights(self.weights)
        drawn = Redrawn(sampled, measured)
        if self.redraws:
            with stopwatch.time("redraw"):
                drawn = self._redraw(prompts, sampled, measured, weights_J, update)

        self.sampler.release(self.policy)
        with stopwatch.time("optimize"):
            # 4. Compare the answers of each group by each component, a reward or minus the cost of a constraint.
            components = self.objective.components(drawn.signals)
            statistics = group_statistics(components)
            # 5. Combine the components by the weights into advantages, [B, G] or [B, G, T].
            advantages = self.estimator(drawn.rollouts, statistics, weights_J)
            # 6. Train the policy by the clipped surrogate, over epochs of minibatches.
            taken = self._train_policy(drawn.rollouts, advantages, update)

        # 7. Train the critic, if the estimator has one.
        if self.critic_advantages is not None:
            with stopwatch.time("critic"):
                self._learn_values(self.critic_advantages, update)
        learn_observations(self.policy, sampled)
        if self.critic_advantages is not None:
            learn_observations(self.critic_advantages, sampled)

        # 8. Count violations and opportunities of each constraint, for the dual.
        own_signals, own_faults = isolate_faults(taken.signals)
        measured = {**measured, **own_signals}
        faults = {**faults, **own_faults}
        counts = self.objective.counts(measured)
        violations_K, opportunities_K = over_prompts(counts, self.objective.constrained)
        if not self.estimator.trains_policy(update):  # Without opportunities no multiplier moves.
            violations_K = torch.zeros_like(violations_K)
            opportunities_K = torch.zeros_like(opportunities_K)

        # 9. Report every update, because callbacks and the progress bar read `latest_metrics`; loggers get those due.
        sums = behavior_sums(self.objective, measured, sampled, faults, counts, self.sampler.longest)
        if self.redraws:
            sums["redrawn"] = torch.full((), drawn.groups, device=self.device)
        self._report_update(update, sums, sampled, statistics, taken, task_metrics, learning_rate, stopwatch.seconds)
        output: UpdateOutput = {
            "prompts": prompts,
            "rollouts": drawn.rollouts,
            "signals": drawn.signals,
            "advantages": advantages,
            "measured": measured,
            "violations": violations_K,
            "opportunities": opportunities_K,
            "steps": sampled.mask.sum() + drawn.steps,
        }
        return copied_on_reading(output)

    def _redraw(
        self, prompts: PromptGroups, rollouts: Rollouts, signals: dict[str, Signal], weights: Tensor, update: int
    ) -> Redrawn:
        """Dynamic sampling: groups without variation are drawn again, see `redraw`."""

        def draw(redrawn_prompts: PromptGroups, number: int) -> tuple[Rollouts, dict[str, Signal]]:
            answers = self.sample(redrawn_prompts, self.group_size, Stream.REDRAW, update * self.redraws + number)
            redrawn_signals, _ = self.score(redrawn_prompts, answers)
            return answers, redrawn_signals

        def varies(group_signals: Signals) -> Tensor:
            return varying_groups(self.objective.components(group_signals), weights)

        drawn = redraw(draw, varies, prompts, rollouts, signals, self.redraws)
        self.task_metrics()  # of redrawn answers
        return drawn

    def _train_policy(self, rollouts: Rollouts, advantages: Tensor, update: int) -> StepsTaken:
        """Take the optimizer steps, unless a critic warms up."""
        if self.estimator.trains_policy(update):
            penalties = self.objective.penalties(self.weights)
            with faster_products(self.policy, self.reference):
                return self.policy_steps.take(
                    rollouts, advantages, self.reference, penalties, seed=self.seed, update=update
                )
        self.manual_optimization.take_step()  # without gradients: counts the update, and moves no weight
        return StepsTaken()

    def _learn_values(self, critic_advantages: CriticAdvantages, update: int) -> None:
        optimizer = self.trainer.optimizers[1]  # not Lightning's wrapper, whose steps are counted as updates
        critic_advantages.learn(optimizer, self.group_size, self.seed, update)
        schedule = self.manual_optimization.schedule(optimizer)
        if schedule is not None:
            schedule.step()

    def policy_signals(self, rollouts: Rollouts) -> dict[str, Signal]:
        with faster_products(self.policy, self.reference):
            return self.policy_steps.measure(rollouts, self.reference)

    # ------------------------------------------------------------------ metrics

    def _report_update(
        self,
        update: int,
        sums: dict[str, Tensor],
        sampled: Rollouts,
        statistics: GroupStatistics,
        taken: StepsTaken,
        task_metrics: dict[str, list[float]] | None,
        learning_rate: float,
        seconds: dict[str, float],
    ) -> None:
        """Keep an update's metrics, log those that are due, and find a run that stands still. Collective.

        Args:
            sums: and `sampled` are of the first draw, `statistics` of the trained groups.
        """
        weights_J = self.objective.component_weights(self.weights)
        effective_JB = self.estimator.effective_weights(statistics, weights_J)
        if self.optimization.mask_truncated:
            sums["masked"] = sampled.info["truncated"].sum()
        sums["task metrics"] = torch.full((), len(task_metrics or ()), device=self.device)
        report = update_report(self.objective, sums, statistics, effective_JB, self.weights, taken, seconds)
        metrics = dict(report.metrics)
        metrics |= {f"threshold/{name}": value for name, value in self.thresholds.items()}
        metrics |= {f"held/{name}": value for name, value in (self.held or {}).items()}
        if self.reference is None:
            metrics.pop("policy/kl", None)
        metrics |= self.estimator.metrics(self.objective.component_names, weights_J)
        if self.estimator.trains_policy(update):
            self.standstill.check(update, report.totals, stepped=bool(taken.grad_norms))
        if report.totals["task metrics"]:  # of any process
            metrics |= {f"functions/{name}": value for name, value in gather_means(task_metrics).items()}
        metrics["policy/learning_rate"] = learning_rate

        self.latest_metrics = metrics
        redrawn_answers = report.totals.get("redrawn", 0) * self.group_size
        self.latest_answers = round(report.totals["answers"] + redrawn_answers)
        self.latest_rates = report.rates
        # One call, because `log` per metric is slow.
        values = torch.tensor(list(metrics.values()), dtype=torch.float64).unbind()
        self.trainer.callback_metrics.update(zip(metrics, values, strict=True))
        if logging_due(self.trainer, update):
            for logger in self.loggers:
                logger.log_metrics(metrics, step=update)
