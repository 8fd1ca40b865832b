"""RolloutModule: sampling, scoring and evaluation of a policy."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Self, TypedDict

import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.loops.progress import _Progress as Progress
from torch import Tensor

from lightning_cgrpo.core.copies import copied, copied_on_reading
from lightning_cgrpo.core.distributed import gather_means
from lightning_cgrpo.core.errors import UserError, expect, expect_kinds, kind_of
from lightning_cgrpo.core.prompts.source import PromptLoader
from lightning_cgrpo.core.randomness import Stream, run_seed, uniform
from lightning_cgrpo.core.rollout import PromptGroups, Rollouts, Signal
from lightning_cgrpo.core.user_code import UserCode
from lightning_cgrpo.grpo.minibatches import LRSchedulerCallable, OptimizerCallable
from lightning_cgrpo.modules.manual_optimization import ManualOptimization
from lightning_cgrpo.modules.monitored import check_monitors
from lightning_cgrpo.modules.trainer_checks import check_finished, check_fit, check_precision, check_trainer
from lightning_cgrpo.objective.evaluation import Evaluation, RunningSums
from lightning_cgrpo.objective.faults import isolate_faults
from lightning_cgrpo.objective.measurement import prompt_sums
from lightning_cgrpo.objective.objective import Objective
from lightning_cgrpo.objective.selection import MERIT, Standing
from lightning_cgrpo.objective.subsets import check_columns
from lightning_cgrpo.objective.verdicts.clustered import ClusteredRate
from lightning_cgrpo.policies.base_weights import same_base, without_bases
from lightning_cgrpo.policies.policy import Policy
from lightning_cgrpo.policies.precision import advise_bfloat16, cast_once, use_tf32
from lightning_cgrpo.policies.sharding import is_sharded, unsharded
from lightning_cgrpo.run.checkpoints.averages import LATEST
from lightning_cgrpo.run.checkpoints.resumable import check_resumable, check_weights
from lightning_cgrpo.samplers.sampler import Sampler
from lightning_cgrpo.settings.objects import Stated
from lightning_cgrpo.tasks.task import Task, TrainerState

TEST_SPLITS = ("test", "test_train", "test_follow_ups", "certify")
"""Splits of a test: test prompts, training prompts, prompts that follow test prompts, and prompts of a certificate."""

TIMES = ("time/", "throughput/")
"""Starts of the tags that differ between equal runs."""


class ScoredPrompts(TypedDict):
    """Output of an evaluation step, for callbacks."""

    prompts: PromptGroups
    rollouts: Rollouts
    signals: dict[str, Signal]


class RolloutModule(Stated, LightningModule):
    """Samples answers, scores them, and evaluates a policy with ``validate``, ``test`` and ``predict``.

    Evaluation samples answers, because greedy answers hide violations, with the same randomness every time. The rate of
    correct answers is pass@1. A test has one or two dataloaders, of test and of training prompts, or a dict by split
    (`TEST_SPLITS`). `evaluations` holds the last evaluation of ``val`` and each test split.

    Args: see `ConstrainedGRPO`.
    """

    def __init__(
        self,
        policy: Policy,
        sampler: Sampler,
        task: Task,
        objective: Objective,
        optimizer: OptimizerCallable,
        lr_scheduler: LRSchedulerCallable | None,
        eval_group_size: int,
        seed: int | None,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.policy = policy
        self.manual_optimization = ManualOptimization(self, optimizer, lr_scheduler)
        expect_kinds(sampler=(sampler, Sampler), task=(task, Task), objective=(objective, Objective))
        # Lightning warns, and starts from zero. The filter is set here, because Lightning looks before `setup`.
        warnings.filterwarnings("error", message=r'.*ckpt_path="last"\) is set, but there is no last checkpoint')
        used_twice = sorted(task.signals.keys() & sampler.signals.keys())
        if used_twice:
            raise UserError(f"Expected other names of the task's signals than of the sampler's, but got {used_twice}.")
        objective.check_signals({**task.signals, **sampler.signals})
        sampler.check_policy(policy)
        _check_lengths(objective, sampler.longest, task)
        expect(eval_group_size >= 1, "eval_group_size", "at least 1", eval_group_size)
        expect(seed is None or seed >= 0, "seed", "at least 0", seed)
        self.sampler = sampler
        self.task = task
        self.objective = objective
        self.eval_group_size = eval_group_size
        self.group_size = eval_group_size  # for modules that sample nothing in training
        self._seed = seed
        self.evaluations: dict[str, Evaluation] = {}
        self._sums = {split: RunningSums() for split in ("val", *TEST_SPLITS)}
        self.latest_metrics: dict[str, float] = {}
        self.latest_answers = 0  # of all processes, with redrawn ones
        self.latest_rates: dict[str, ClusteredRate] = {}
        self._metrics: dict[str, Tensor] = {}
        self._measured_prompts = 0
        self._monitors_checked = False

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        # Monitoring callbacks may read metrics before the next log. Times would differ between equal runs.
        metrics = self.trainer.callback_metrics.items()
        checkpoint["metrics"] = {name: value.cpu() for name, value in metrics if not name.startswith(TIMES)}
        if self.manual_optimization.fitting_tokens is not None:
            checkpoint["micro_batch_tokens"] = self.manual_optimization.fitting_tokens
        if self.sampler.memory is not None:
            checkpoint["rollout_bytes"] = self.sampler.memory
        if "state_dict" not in checkpoint:
            return
        # A fingerprint stands for a base model's weights, which training leaves as they are.
        state, fingerprints = without_bases(self, checkpoint["state_dict"])
        if fingerprints:
            checkpoint["state_dict"] = state
            checkpoint["base_weights"] = fingerprints
            if LATEST in checkpoint:
                checkpoint[LATEST] = {name: checkpoint[LATEST][name] for name in state}

    @classmethod
    def load_from_checkpoint(cls, checkpoint_path: Any, *args: Any, **kwargs: Any) -> Self:
        """Lightning's method, with all constructor arguments, because a checkpoint holds none."""
        if not kwargs:
            raise UserError(
                f"Expected the arguments of {cls.__name__}, since a checkpoint holds weights alone, but got none, try "
                f"lightning_cgrpo.load('{checkpoint_path}'), which builds the module from the run's config.yaml."
            )
        return super().load_from_checkpoint(checkpoint_path, *args, **kwargs)

    # ------------------------------------------------------------------ set-up

    def configure_callbacks(self) -> list[Callback]:
        """No callbacks; this hook precedes Lightning's own, less helpful errors and its advice to use TF32."""
        check_trainer(self.trainer)
        use_tf32(self.trainer.accelerator)
        return []

    def setup(self, stage: str) -> None:
        """Check the trainer and the columns that constraints name, before the policy's weights are loaded."""
        for message in (
            "Found \\d+ module\\(s\\) in eval mode",  # references and language models
            "The number of training batches .* is smaller than the logging interval",  # of updates, over all epochs
            "`isinstance\\(treespec, LeafSpec\\)` is deprecated",  # a call of Lightning's
        ):
            warnings.filterwarnings("ignore", message=message)
        if stage == "fit":
            check_fit(self.trainer)
        data = getattr(self.trainer, "datamodule", None)
        if stage == "fit" and data is not None and hasattr(data, "source"):
            check_columns(self.objective.constraints, data.source)

    def load_policy(self) -> None:
        """Load the policy's weights, in a precision that is exact enough."""
        if self._trainer is not None:
            check_precision(self.trainer)
        self.policy.load()
        if self._is_fitting():
            advise_bfloat16(self.policy, self.trainer)

    def _is_fitting(self) -> bool:
        return self._trainer is not None and self.trainer.state.fn == "fit"

    def configure_optimizers(self) -> Any:
        return self.manual_optimization.configure()

    @property
    def seed(self) -> int:
        """Argument `seed`, else the seed of `lightning.seed_everything`, else 0."""
        return run_seed(self._seed)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self._metrics = checkpoint.get("metrics", {})
        self.manual_optimization.fitting_tokens = checkpoint.get("micro_batch_tokens")  # passes as before: equal sums
        path = "the checkpoint"
        if self._trainer is not None:
            path = str(self.trainer.ckpt_path or path)
            if self.trainer.state.fn == "fit":
                check_resumable(checkpoint, path)
                # As many answers at once as before. An evaluation may have less memory.
                self.sampler.memory = checkpoint.get("rollout_bytes", self.sampler.memory)
            if self.trainer.precision == "64-true":
                # Lightning converts the module after loading, which would round the weights.
                self.double()
        # Add the weights of base models, for which the checkpoint has fingerprints.
        modules: dict[str, Any] = dict(self.named_modules())
        for name, fingerprint in checkpoint.get("base_weights", {}).items():
            policy = modules.get(name)
            if policy is None:  # no critic in a test
                continue
            base = same_base(policy, fingerprint, path)
            tensors = {f"{name}.{weight}": tensor for weight, tensor in base.items()}
            checkpoint["state_dict"] |= tensors
            if LATEST in checkpoint:
                checkpoint[LATEST] |= tensors
        # FSDP2 compares the weights of a sharded checkpoint.
        if "state_dict" in checkpoint and not is_sharded(self.policy):
            check_weights(self.state_dict(), checkpoint["state_dict"], path)

    def on_train_start(self) -> None:
        self.manual_optimization.start()
        self.trainer.callback_metrics.update(self._metrics)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        # After all callbacks, which may log metrics, too.
        if not self._monitors_checked:
            self._monitors_checked = True
            check_monitors(self.trainer, self, self.objective)

    def on_train_epoch_end(self) -> None:
        loop = self.trainer.fit_loop.epoch_loop
        check_finished(loop.batch_progress, loop.done)

    def on_train_end(self) -> None:
        # Lightning's counts of epochs are off by one after some resumes, so they tell of whole runs alone.
        if self.trainer.ckpt_path is None:
            check_finished(self.trainer.fit_loop.epoch_progress)

    # ------------------------------------------------------------------ sampling and measuring

    def sample(self, prompts: PromptGroups, group_size: int, stream: Stream, update: int) -> Rollouts:
        """Answer every prompt `group_size` times, with the randomness of (seed, stream, update, prompt)."""
        if not isinstance(prompts, PromptGroups):
            raise UserError(
                f"Expected batches of PromptGroups, but got {kind_of(prompts)}, try a data module such as "
                "PromptDataModule, or a PromptLoader."
            )

        def noise(*shape: int) -> Tensor:
            return uniform(self.seed, stream, update, prompts.index, shape).to(prompts.index.device)

        self.policy.eval()
        name = f"{type(self.sampler).__name__}.rollout"
        whole_weights = unsharded(self.policy) if self.sampler.reads_weights else nullcontext()
        with torch.no_grad(), whole_weights, cast_once(prompts.index.device), UserCode(name):
            rollouts = self.sampler.rollout(self.policy, prompts, group_size, noise)
        self.policy.train()
        return rollouts

    def score(self, prompts: PromptGroups, rollouts: Rollouts) -> tuple[dict[str, Signal], dict[str, Tensor]]:
        """All signals, and counts ``[B]`` of non-finite entries by signal; such entries do not apply."""
        trainer = self._trainer
        if trainer is not None:
            self.task.trainer_state = TrainerState(trainer.global_step, trainer.max_steps, trainer.current_epoch)

        # The task measures copies. It may add facts for callbacks, but changes none.
        task_rollouts = copied(rollouts)
        with UserCode(f"{type(self.task).__name__}.score"):
            scored = dict(self.task.score(copied(prompts), task_rollouts))
        new_facts = {name: fact for name, fact in task_rollouts.info.items() if name not in rollouts.info}
        rollouts.info |= new_facts

        # The sampler measures, too.
        scored |= self.sampler.measured(rollouts)
        for name, signal in scored.items():
            if not isinstance(signal, Signal):
                raise UserError(
                    f"Expected {type(self.task).__name__}.score to return signals by name, but got '{name}' as a "
                    f"{type(signal).__name__}, try Signal(value)."
                )

        # Signals of subsets are added, and entries that are not finite are left out.
        device = rollouts.mask.device  # a task may measure on the CPU
        masked = {name: signal.to(device).within(rollouts.mask) for name, signal in scored.items()}
        all_signals = self.objective.made(masked, prompts)
        signals, faults = isolate_faults(all_signals)
        faulty = [name for name, signal in signals.items() if signal is not all_signals[name]]
        if faulty:
            counts = {name: int(faults[name].sum()) for name in faulty}
            # On every process, because processes have different faults.
            warnings.warn(
                f"Signal values were not finite and are left out: {counts}. The tags faults/* count them.", stacklevel=2
            )
        return signals, faults

    def task_metrics(self) -> dict[str, list[float]] | None:
        """The metrics of `Task.logged`."""
        with UserCode(f"{type(self.task).__name__}.logged"):
            return self.task.logged()

    def measure(
        self, prompts: PromptGroups, group_size: int, stream: Stream, update: int, sums: RunningSums | None = None
    ) -> ScoredPrompts:
        rollouts = self.sample(prompts, group_size, stream, update)
        signals, faults = self.score(prompts, rollouts)
        self._measured_prompts += len(prompts.index)
        if sums is not None:
            policy_signals, policy_faults = isolate_faults(self.policy_signals(rollouts))
            signals = {**signals, **policy_signals}
            faults = {**faults, **policy_faults}
            rows = prompt_sums(self.objective, signals, rollouts, faults, longest=self.sampler.longest)
            sums.add(rows, prompts, rollouts)
        return copied_on_reading(ScoredPrompts(prompts=prompts, rollouts=rollouts, signals=signals))

    def policy_signals(self, rollouts: Rollouts) -> dict[str, Signal]:
        """The policy's own signals of answers of an evaluation; by default none."""
        return {}

    def sums(self, split: str) -> RunningSums:
        """The last evaluation's sums of each prompt: of ``val`` or a split of the test."""
        return self._sums[split]

    def on_validation_epoch_start(self) -> None:
        self._measured_prompts = 0
        self._sums["val"].clear()

    def on_predict_epoch_start(self) -> None:
        self._measured_prompts = 0

    def on_test_epoch_start(self) -> None:
        self._measured_prompts = 0
        self._splits_of_test()
        for split in TEST_SPLITS:
            self._sums[split].clear()
            self.evaluations.pop(split, None)

    def validation_step(self, prompts: PromptGroups, batch_idx: int) -> ScoredPrompts:
        return self.measure(prompts, self.eval_group_size, Stream.VALIDATION, 0, self._sums["val"])

    def test_step(self, prompts: PromptGroups, batch_idx: int, dataloader_idx: int = 0) -> ScoredPrompts:
        # The split replaces the update, because prompts of two splits share indices.
        split = self._splits_of_test()[dataloader_idx]
        sums = self._sums[split]
        return self.measure(prompts, self.eval_group_size, Stream.TEST, TEST_SPLITS.index(split), sums)

    def _splits_of_test(self) -> Sequence[str]:
        loaders = self.trainer.test_dataloaders
        if isinstance(loaders, Mapping):
            unknown = [name for name in loaders if name not in TEST_SPLITS]
            if unknown:
                raise UserError(
                    f"Expected test dataloaders to be called {', '.join(TEST_SPLITS)}, but got '{unknown[0]}'."
                )
            return list(loaders)
        count = len(self.trainer.num_test_batches)
        if count > 2:
            raise UserError(
                "Expected one or two test dataloaders, of test prompts and of training prompts, but got "
                f"{count}, try a test for each."
            )
        return TEST_SPLITS[:count]

    def predict_step(self, prompts: PromptGroups, batch_idx: int) -> ScoredPrompts:
        return self.measure(prompts, self.eval_group_size, Stream.PREDICT, 0)

    def on_validation_epoch_end(self) -> None:
        trainer = self.trainer
        limits = trainer.num_sanity_val_batches if trainer.sanity_checking else trainer.num_val_batches
        loop = trainer.validate_loop if trainer.state.fn == "validate" else trainer.fit_loop.epoch_loop.val_loop
        self._check_measured(loop.batch_progress, trainer.val_dataloaders, limits)
        self._finish_evaluation("val")

    def on_predict_epoch_end(self) -> None:
        trainer = self.trainer
        progress = trainer.predict_loop.batch_progress
        self._check_measured(progress, trainer.predict_dataloaders, trainer.num_predict_batches)

    def on_test_epoch_end(self) -> None:
        trainer = self.trainer
        progress = trainer.test_loop.batch_progress
        self._check_measured(progress, trainer.test_dataloaders, trainer.num_test_batches)
        for split in self._splits_of_test():
            self._finish_evaluation(split)

    def _check_measured(self, progress: Progress, loaders: Any, limits: Sequence[float]) -> None:
        """Raise a `UserError` unless all prompts were measured: a StopIteration ends Lightning's loop silently."""
        if isinstance(loaders, Mapping):
            loaders = list(loaders.values())
        elif not isinstance(loaders, list):
            loaders = [loaders]
        if all(isinstance(loader, PromptLoader) for loader in loaders):
            expected = sum(loader.prompts(limit) for loader, limit in zip(loaders, limits, strict=False))
            if self._measured_prompts != expected:
                raise UserError(
                    f"Expected to measure {expected} prompts, but got {self._measured_prompts}, because code raised "
                    "StopIteration, which ends Lightning's loop, try without callbacks or modules of your own."
                )
        check_finished(progress)

    def _finish_evaluation(self, split: str) -> None:
        evaluation = self._sums[split].evaluation(self.objective)
        self.evaluations[split] = evaluation
        metrics = dict(evaluation.metrics)
        if split == "val":
            metrics |= {f"functions/{name}": value for name, value in gather_means(self.task_metrics()).items()}
            standing = Standing.of(self.objective, evaluation)
            if standing is not None:
                metrics[MERIT] = standing.merit
        else:
            for name, rate in evaluation.rates.items():
                bound = self.objective.constraints[name].bound
                low, high = bound.interval(rate)
                metrics[f"{bound.kind}_low/{name}"] = low
                metrics[f"{bound.kind}_high/{name}"] = high
        self.log_dict({f"{split}/{tag}": value for tag, value in metrics.items()}, sync_dist=True)


def _check_lengths(objective: Objective, longest: int | None, task: Task) -> None:
    if longest is None:
        return
    if task.max_completion_tokens is not None and task.max_completion_tokens < longest:
        raise UserError(
            f"Expected the task's max_completion_tokens to be at least the sampler's max_new_tokens, {longest}, but "
            f"got {task.max_completion_tokens}, try the same for both."
        )
    for name, constraint in objective.constrained.items():
        if (constraint.signal or name) != "tokens":
            continue
        limit = constraint.violated_above
        if isinstance(limit, (int, float)) and limit >= longest:
            raise UserError(
                f"Expected constraint '{name}' to be violated by some answers, but got violated_above: {limit:g} and "
                f"answers of at most {longest} tokens (max_new_tokens), try a smaller violated_above."
            )
        largest_mean = constraint.mean_at_most
        if largest_mean is not None and largest_mean >= longest:
            raise UserError(
                f"Expected constraint '{name}' to be missed by some policies, but got mean_at_most: {largest_mean:g} "
                f"and answers of at most {longest} tokens (max_new_tokens), try a smaller mean_at_most."
            )
