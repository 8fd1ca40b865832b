"""ConstrainedGRPO: the LightningModule that owns the policy, the reference and the loss."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lightning_cgrpo.errors import UserError
from lightning_cgrpo.grpo.advantages import AdvantageEstimator, ScalarizedAdvantages
from lightning_cgrpo.grpo.losses import aggregation_weights, grpo_loss, sampling_ratio
from lightning_cgrpo.grpo.minibatches import (
    Optimization,
    loss_mask,
    micro_batches,
    minibatches,
    put_rows,
    with_targets,
)
from lightning_cgrpo.modules.collapse import CollapseDetector, all_succeed, constant_rewards
from lightning_cgrpo.modules.dynamic_sampling import redraw
from lightning_cgrpo.modules.rollout_module import LRSchedulerCallable, OptimizerCallable, RolloutModule
from lightning_cgrpo.modules.update_report import UpdateReport
from lightning_cgrpo.objective.objective import Objective
from lightning_cgrpo.policies.policy import Policy, Reference
from lightning_cgrpo.policies.sharding import is_sharded, shard, total_norm
from lightning_cgrpo.prompt_source import PromptLoader
from lightning_cgrpo.randomness import Stream
from lightning_cgrpo.rollout import Examples, PromptGroups, Rollouts
from lightning_cgrpo.samplers.sampler import Sampler
from lightning_cgrpo.tasks.task import Task


class ConstrainedGRPO(RolloutModule):
    """Group-relative policy optimization of a reward under behavior-rate constraints.

    One training step is one *update*: sample G answers to each prompt, score them, estimate advantages with the
    current `weights`, and take the optimizer steps of all epochs and minibatches. Lightning's ``global_step`` counts
    updates, so ``max_steps``, checkpoint and logging intervals mean updates.

    The module reads its ``weights [1 + K]`` buffer (the reward's weight, then the constraints') and never changes it:
    that is for callbacks, `WeightSetter`. An objective without constraints to enforce needs none: the weight stays at
    (1,), which is plain GRPO on the reward.

    A step's output, for callbacks' ``on_train_batch_end``: ``prompts``, ``rollouts``, ``signals``, ``advantages``,
    ``effective_weights`` (in updates that are logged, by component, of this process's groups in which it varies), and
    ``violations`` and ``opportunities``, this process's counts ``[K]`` of the constraints that have a multiplier. With
    `redraws` the rollouts and signals are those trained on; violations, like all that is logged of rewards and rates,
    are those of the first draw, which is the policy's.

    Args:
        policy: what is trained.
        sampler: how the policy answers prompts.
        task: scores answers into signals.
        objective: which signal is the reward, and which are constrained to which rates.
        estimator: how signals and weights become advantages.
        optimizer: makes the optimizer from parameters.
        lr_scheduler: makes a learning-rate schedule from the optimizer, stepped once per update.
        optimization: epochs, minibatches, clipping, KL and entropy.
        group_size: answers per prompt (G) in training.
        redraws: how often a group in which no component varies is sampled again at most, see `redrawing.redraw`.
        eval_group_size: answers per prompt in validation, test and prediction.
        seed: of rollouts and minibatches; by default the seed of `lightning.seed_everything`.

    Raises:
        ObjectiveError: if objective and task don't fit, before the policy's weights are loaded.
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
        if group_size < 2:
            raise ValueError(f"Expected argument `group_size` to be at least 2, but got {group_size}.")
        if redraws < 0:
            raise ValueError(f"Expected argument `redraws` to be at least 0, but got {redraws}.")
        self.reference: Reference | None = None
        self.estimator: AdvantageEstimator = ScalarizedAdvantages() if estimator is None else estimator
        self.optimization = optimization
        self.group_size, self.redraws = group_size, redraws
        initial = torch.zeros(len(objective.weight_names), dtype=torch.float64)
        initial[0] = 1
        # Not in checkpoints: whoever sets the weights restores them, and without anybody this is plain GRPO.
        self.register_buffer("weights", initial, persistent=False)
        self.has_weight_setter = False
        self.collapse = CollapseDetector(list(objective.rewards))
        self._skipped_update = -2

    # ------------------------------------------------------------------ set-up

    def setup(self, stage: str) -> None:
        """Raises:
        UserError: if there are constraints in training, and no callback weights them; as `RolloutModule`.
        """
        super().setup(stage)
        if stage == "fit" and self.objective.constrained and not self.has_weight_setter:
            names = ", ".join(self.objective.constrained)
            raise UserError(
                f"Expected a callback that weights the constraints ({names}), but got none, try LagrangianCallback "
                "(callbacks.multipliers), or role: monitor, which measures a constraint without enforcing it."
            )

    def configure_model(self) -> None:
        """Load the policy's weights (once), and freeze a reference if the KL term needs one."""
        self.load_policy()
        if self.optimization.kl_weight and self.reference is None:
            self.reference = self.policy.reference()
        shard(self)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        checkpoint["collapse"] = self.collapse.state_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if "collapse" in checkpoint:  # not after supervised fine-tuning
            self.collapse.load_state_dict(checkpoint["collapse"], self.device)
        if self.reference is None:
            # Trained with a KL term, used without.
            state = checkpoint.get("state_dict", {})  # not in what is read of a sharded one
            checkpoint["state_dict"] = {name: t for name, t in state.items() if not name.startswith("reference.")}
        super().on_load_checkpoint(checkpoint)

    def on_train_start(self) -> None:
        """Raises:
        UserError: if there are prompts that the sampler can't answer, or more updates than the schedule has.
        """
        super().on_train_start()
        for loaders in (self.trainer.train_dataloader, self.trainer.val_dataloaders):
            for loader in loaders if isinstance(loaders, (list, tuple)) else [loaders]:
                if isinstance(loader, PromptLoader):
                    self.sampler.check(self.policy, loader.source)

    # ------------------------------------------------------------------ an update

    def training_step(self, prompts: PromptGroups, batch_idx: int) -> dict[str, Any]:
        update = self.trainer.global_step
        report = UpdateReport(self, update)
        with report.time("rollout"):
            rollouts = self.sample(prompts, self.group_size, Stream.ROLLOUT, update)
        with report.time("score"):
            signals, faults = self.score(prompts, rollouts)
            violations, opportunities = self.objective.violations(signals, self.objective.constrained)
        drawn, measured = rollouts, signals
        if self.redraws:
            with report.time("redraw"):
                rollouts, signals, report.redrawn = redraw(self, prompts, rollouts, signals, self.redraws, update)
        with report.time("optimize"):
            components = self.objective.components(signals)
            weights = self.objective.component_weights(self.weights)
            advantages = self.estimator(rollouts, components, weights)
            self._optimize(rollouts, advantages, update, report)
        succeeded = all_succeed(self.objective, measured, violations)
        constant = constant_rewards(components, len(self.objective.rewards))
        self.collapse.add(update, report.entropy, advantages, constant, succeeded, stepped=bool(report.grad_norms))
        report.write(drawn, measured, faults, components, weights)
        return {
            "prompts": prompts,
            "rollouts": rollouts,
            "signals": signals,
            "advantages": advantages,
            "effective_weights": report.effective_weights,
            "violations": violations,
            "opportunities": opportunities,
        }

    def _optimize(self, rollouts: Rollouts, advantages: Tensor, update: int, report: UpdateReport) -> None:
        """All optimizer steps on one rollout; the last one is the one that Lightning counts."""
        how = self.optimization
        examples = self._training_examples(rollouts, advantages)
        epochs = [
            list(minibatches(examples, how.minibatch_size, self.group_size, self.seed, update, epoch))
            for epoch in range(how.epochs)
        ]
        # With a single minibatch, the first pass sees the policy that sampled: its log-probabilities come for free.
        record = "old_log_probs" not in examples.targets
        if record:
            record = len(epochs[0]) == 1
            old = torch.zeros_like(examples.targets["weights"]) if record else self._log_probs(self.policy, examples)
            examples.targets["old_log_probs"] = old
        optimizer = self.optimizers()
        assert isinstance(optimizer, LightningOptimizer)
        remaining = sum(len(parts) for parts in epochs)
        for parts in epochs:
            for rows, scale in parts:
                report.next_minibatch()
                self._backward(examples, rows, scale, record, report)
                self._clip_gradients(report)
                remaining -= 1
                # Lightning counts the steps of its wrapper as global_step, which is to count updates.
                (optimizer.optimizer if remaining else optimizer).step()
                optimizer.zero_grad()
            record = False
        report.add_sampling(examples)
        scheduler = self.lr_schedulers()
        if isinstance(scheduler, LRScheduler):
            scheduler.step()

    def _training_examples(self, rollouts: Rollouts, advantages: Tensor) -> Examples:
        how = self.optimization
        if advantages.dim() == 2:
            advantages = advantages[..., None].expand(rollouts.mask.shape)
        known = {"old_log_probs": rollouts.log_probs, "sampling_log_probs": rollouts.sampling_log_probs}
        examples = with_targets(
            self.policy.examples(rollouts),
            rollouts,
            advantages=advantages,
            weights=aggregation_weights(loss_mask(rollouts, how.mask_truncated), how.aggregation, how.max_length),
            **{name: values for name, values in known.items() if values is not None},
        )
        if how.sequence_ratio and examples.actions.dim() == 1:
            raise UserError(
                "Expected a policy that trains on whole answers for sequence_ratio, but got "
                f"{type(self.policy).__name__}, which trains on single steps, try sequence_ratio: false."
            )
        if self.reference is not None:
            examples.targets["reference_log_probs"] = self._log_probs(self.reference, examples)
        return examples

    def _log_probs(self, model: Reference, examples: Examples) -> Tensor:
        """Log-probabilities of all examples, without gradients, 0 where there is no action."""
        out = torch.zeros_like(examples.targets["weights"])
        rows = torch.arange(len(examples), device=out.device)
        with torch.no_grad():
            for piece in self.passes(micro_batches(rows, self.optimization.micro_batch_size)):
                if len(piece):
                    part = examples[piece]
                    put_rows(out, piece, torch.where(part.mask, model(part).log_probs, 0))
                elif is_sharded(self.policy):
                    model(self.policy.placeholder())
        return out

    def _backward(self, examples: Examples, rows: Tensor, scale: float, record: bool, report: UpdateReport) -> None:
        """Gradients of a minibatch, accumulated over its micro-batches."""
        pieces = micro_batches(rows, self.optimization.micro_batch_size)
        self.accumulate(pieces, lambda piece: self._loss(examples, piece, scale, record, report))

    def _loss(self, examples: Examples, piece: Tensor, scale: float, record: bool, report: UpdateReport) -> Tensor:
        how = self.optimization
        part = examples[piece]
        output = self.policy(part)
        old = part.targets["old_log_probs"]
        if record:
            old = torch.where(part.mask, output.log_probs.detach(), 0)
            put_rows(examples.targets["old_log_probs"], piece, old)
        sampled = part.targets.get("sampling_log_probs")
        terms = grpo_loss(
            output.log_probs,
            old,
            part.targets["advantages"],
            part.targets["weights"],
            surrogate=how.maximized(),
            sequence_ratio=how.sequence_ratio,
            sampling_ratios=None if sampled is None else sampling_ratio(old, sampled, how.sampling_cap),
            reference_log_probs=part.targets.get("reference_log_probs"),
            kl_weight=how.kl_weight,
            correct_kl=how.correct_kl,
            entropy=output.entropy,
            entropy_weight=how.entropy_weight,
        )
        report.add_terms(terms, scale)
        return terms.loss * scale

    def _clip_gradients(self, report: UpdateReport) -> None:
        """Scale gradients down to `max_grad_norm`; drop them if they aren't finite, and say so."""
        limit = self.optimization.max_grad_norm
        norm = total_norm(self.policy)
        if bool(norm.isfinite()):
            if limit is not None:
                nn.utils.clip_grads_with_norm_(self.policy.parameters(), limit, norm)
            report.grad_norms.append(norm)
            return
        report.skipped_steps += 1
        if self._skipped_update not in (report.update, report.update - 1):
            rank_zero_warn(
                f"The gradient of update {report.update} is not finite; its optimizer step is skipped, as are further "
                "such steps. The tag faults/skipped_steps counts them."
            )
        self._skipped_update = report.update
        for parameter in self.policy.parameters():
            parameter.grad = None

    # ------------------------------------------------------------------ for reports

    @property
    def learning_rate(self) -> float:
        """The current one, of the first parameter group."""
        optimizer = self.optimizers(use_pl_optimizer=False)
        assert isinstance(optimizer, Optimizer)
        return float(optimizer.param_groups[0]["lr"])

    def write_metrics(self, metrics: dict[str, float], update: int) -> None:
        """Send metrics to all loggers, and keep them for the progress bar and for callbacks that monitor one."""
        self.latest_metrics = metrics
        values = torch.tensor(list(metrics.values()), dtype=torch.float64).unbind()
        self.trainer.callback_metrics.update(zip(metrics, values, strict=True))
        for logger in self.loggers:
            logger.log_metrics(metrics, step=update)
