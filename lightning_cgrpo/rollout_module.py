"""What every module does that has a policy answer prompts: sample, score, evaluate."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from lightning_cgrpo.distributed import gather_counts
from lightning_cgrpo.errors import UserError
from lightning_cgrpo.measurement import Evaluation, RunningSums, isolate_faults, prompt_sums
from lightning_cgrpo.monitors import TIMES, check_monitors
from lightning_cgrpo.objective import Objective
from lightning_cgrpo.policies import Policy
from lightning_cgrpo.randomness import Stream, uniform
from lightning_cgrpo.rollout import PromptGroups, Rollouts, Signal
from lightning_cgrpo.samplers import Sampler
from lightning_cgrpo.sharding import is_sharded, unsharded
from lightning_cgrpo.tasks import Task

TEST_SPLITS = ("test", "test_train", "test_follow_ups")
"""What the dataloaders of a test hold: test prompts, training prompts, and prompts that follow test prompts."""


class RolloutModule(LightningModule):
    """Samples answers, scores them, and evaluates a policy by both, with ``validate``, ``test`` and ``predict``.

    Evaluation samples, too: a policy's rates are those of its distribution, and a greedy answer hides violations. The
    rate of correct answers is then pass@1, whatever `eval_group_size`; more answers per prompt make it more precise.
    The randomness is the same at every evaluation.

    Thresholds that are met on the prompts of training can be missed on others. So a test has one or two dataloaders:
    of test prompts, and of training prompts. They may be a dict by split, which has ``test_follow_ups``, too.
    `evaluations` holds what the last ones measured, by split: ``val``, ``test``, ``test_train``, ``test_follow_ups``.

    Args:
        policy: answers.
        sampler: how it answers prompts.
        task: scores answers into signals.
        objective: which signal is the reward, and which are constrained to which rates.
        eval_group_size: answers per prompt in evaluation.
        seed: of rollouts.

    Raises:
        ObjectiveError: if objective and task don't fit, before the policy's weights are loaded.
    """

    def __init__(
        self, policy: Policy, sampler: Sampler, task: Task, objective: Objective, eval_group_size: int, seed: int
    ) -> None:
        super().__init__()
        objective.check_signals(task.signals)
        for name, value, least in (("eval_group_size", eval_group_size, 1), ("seed", seed, 0)):
            if value < least:
                raise ValueError(f"Expected argument `{name}` to be at least {least}, but got {value}.")
        self.policy, self.sampler, self.task, self.objective = policy, sampler, task, objective
        self.eval_group_size, self.seed = eval_group_size, seed
        self.evaluations: dict[str, Evaluation] = {}
        self._sums = {split: RunningSums() for split in ("val", *TEST_SPLITS)}
        self._metrics: dict[str, Tensor] = {}
        self._checks_monitors = False

    def setup(self, stage: str) -> None:
        for message in (
            "Found \\d+ module\\(s\\) in eval mode",  # references, and language models; see `CausalLMPolicy`
            "The number of training batches .* is smaller than the logging interval",  # of updates, over all epochs
        ):
            warnings.filterwarnings("ignore", message=message)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        # Callbacks that monitor one may ask before the next is logged. Times would differ between equal runs.
        metrics = self.trainer.callback_metrics.items()
        checkpoint["metrics"] = {name: value.cpu() for name, value in metrics if not name.startswith(TIMES)}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self._metrics = checkpoint.get("metrics", {})

    def on_train_start(self) -> None:
        """Raises:
        UserError: if there are more updates than the learning-rate schedule has: it would fail when they are made.
        """
        self.trainer.callback_metrics.update(self._metrics)
        self._checks_monitors = True
        steps = getattr(self.lr_schedulers(), "total_steps", None)
        if steps is not None and (updates := self.trainer.estimated_stepping_batches) > steps:
            raise UserError(
                f"Expected model.lr_scheduler.total_steps to be at least {updates}, the updates of this run, but got "
                f"{steps}, try that, or trainer.max_steps={steps}; a run that goes on from a checkpoint has the "
                "schedule that it began with."
            )

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Raises:
        UserError: if a callback monitors a metric that there isn't; asked once.
        """
        if self._checks_monitors and self.trainer.callback_metrics:
            self._checks_monitors = False
            check_monitors(self.trainer, self.objective, validated=False)

    def accumulate(self, pieces: Sequence[Tensor], loss: Callable[[Tensor], Tensor]) -> None:
        """Gradients of a minibatch, summed over its pieces; processes wait for each other at the last one alone.

        Args:
            pieces: rows of the minibatch, see `micro_batches`; an empty one if all are on other processes.
            loss: of a piece that isn't empty.
        """
        pieces = self.passes(pieces)
        for number, piece in enumerate(pieces):
            with self._gradient_sync(number == len(pieces) - 1):
                # Without units: those of the minibatch are on other processes, which wait for this one's gradients.
                self.manual_backward(loss(piece) if len(piece) else self._no_loss())

    def passes(self, pieces: Sequence[Tensor]) -> Sequence[Tensor]:
        """Pieces for as many passes as every process makes, where the weights are spread over them; see `sharding`.

        An empty piece is to be passed all the same, as the policy's placeholder. Collective.
        """
        if not is_sharded(self.policy):
            return pieces
        most = max(gather_counts(len(pieces), self.device))
        return [*pieces, *(pieces[0][:0] for _ in range(most - len(pieces)))]

    def _no_loss(self) -> Tensor:
        """0, with gradients of 0 for all that is trained."""
        if not is_sharded(self.policy):
            return torch.stack([p.sum() * 0 for p in self.policy.parameters() if p.requires_grad]).sum()
        output = self.policy(self.policy.placeholder())
        return (output.log_probs.sum() + output.entropy.sum()) * 0

    def _gradient_sync(self, wanted: bool) -> AbstractContextManager[Any]:
        """Leaves the gradients on their process until the last micro-batch (DDP)."""
        wrapped = self.trainer.strategy.model
        return nullcontext() if wanted or not isinstance(wrapped, DistributedDataParallel) else wrapped.no_sync()

    def sample(self, prompts: PromptGroups, group_size: int, stream: Stream, update: int) -> Rollouts:
        """Answer every prompt `group_size` times, with the randomness of (seed, stream, update, prompt)."""

        def noise(*shape: int) -> Tensor:
            return uniform(self.seed, stream, update, prompts.index, shape).to(prompts.index.device)

        self.policy.eval()
        with torch.no_grad(), unsharded(self.policy) as policy:
            rollouts = self.sampler.rollout(policy, prompts, group_size, noise)
        self.policy.train()
        return rollouts

    def score(self, prompts: PromptGroups, rollouts: Rollouts) -> tuple[dict[str, Signal], dict[str, Tensor]]:
        """The task's signals, in which entries that aren't finite do not apply, and their number by signal ``[B]``."""
        signals, faults = isolate_faults(self.task.score(prompts, rollouts))
        if any(bool(counts.any()) for counts in faults.values()):
            found = {name: int(counts.sum()) for name, counts in faults.items() if counts.any()}
            # On every process: faults of one needn't be those of another.
            warnings.warn(
                f"Signal values were not finite and are left out: {found}. The tags faults/* count them.", stacklevel=2
            )
        return signals, faults

    def measure(
        self, prompts: PromptGroups, group_size: int, stream: Stream, update: int, sums: RunningSums | None = None
    ) -> dict[str, Any]:
        """Sample, score, and add what was measured to `sums`; returns prompts, rollouts and signals."""
        rollouts = self.sample(prompts, group_size, stream, update)
        signals, faults = self.score(prompts, rollouts)
        if sums is not None:
            sums.add(prompt_sums(self.objective, signals, rollouts, faults))
        return {"prompts": prompts, "rollouts": rollouts, "signals": signals}

    def on_validation_epoch_start(self) -> None:
        self._sums["val"].clear()

    def on_test_epoch_start(self) -> None:
        """Raises:
        UserError: if there are more than two dataloaders without names, or one has another name.
        """
        self._splits_of_test()
        for split in TEST_SPLITS:
            self._sums[split].clear()
            self.evaluations.pop(split, None)

    def validation_step(self, prompts: PromptGroups, batch_idx: int) -> dict[str, Any]:
        return self.measure(prompts, self.eval_group_size, Stream.VALIDATION, 0, self._sums["val"])

    def test_step(self, prompts: PromptGroups, batch_idx: int, dataloader_idx: int = 0) -> dict[str, Any]:
        # In the place of the update, lest a training prompt share the randomness of the test prompt of its index.
        split = self._splits_of_test()[dataloader_idx]
        sums = self._sums[split]
        return self.measure(prompts, self.eval_group_size, Stream.TEST, TEST_SPLITS.index(split), sums)

    def _splits_of_test(self) -> Sequence[str]:
        """Of every dataloader the split."""
        loaders, count = self.trainer.test_dataloaders, len(self.trainer.num_test_batches)
        if isinstance(loaders, Mapping):
            unknown = [name for name in loaders if name not in TEST_SPLITS]
            if unknown:
                raise UserError(
                    f"Expected test dataloaders to be called {', '.join(TEST_SPLITS)}, but got '{unknown[0]}'."
                )
            return list(loaders)
        if count > 2:
            raise UserError(
                "Expected one or two test dataloaders, of test prompts and of training prompts, but got "
                f"{count}, try a test for each."
            )
        return TEST_SPLITS[:count]

    def predict_step(self, prompts: PromptGroups, batch_idx: int) -> dict[str, Any]:
        return self.measure(prompts, self.eval_group_size, Stream.PREDICT, 0)

    def on_validation_epoch_end(self) -> None:
        self._finish_evaluation("val")
        if self.trainer.state.fn == "fit" and not self.trainer.sanity_checking:
            check_monitors(self.trainer, self.objective, validated=True)

    def on_test_epoch_end(self) -> None:
        for split in self._splits_of_test():
            self._finish_evaluation(split)

    def _finish_evaluation(self, split: str) -> None:
        evaluation = self._sums[split].evaluation(self.objective)
        self.evaluations[split] = evaluation
        self.log_dict({f"{split}/{tag}": value for tag, value in evaluation.metrics.items()}, sync_dist=True)
