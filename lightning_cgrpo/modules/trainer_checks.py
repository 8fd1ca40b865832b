"""Options of the trainer, callbacks and hooks with which an update of several steps can't be trained."""

from __future__ import annotations

from lightning.pytorch import Trainer
from lightning.pytorch.accelerators import MPSAccelerator
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    GradientAccumulationScheduler,
    LearningRateFinder,
    ModelPruning,
    WeightAveraging,
)
from lightning.pytorch.loops.progress import _Progress as Progress
from lightning.pytorch.strategies import FSDPStrategy, ModelParallelStrategy

from lightning_cgrpo.core.errors import UserError


def check_trainer(trainer: Trainer) -> None:
    """Refuse options of the trainer that have another meaning where an update takes several steps.

    Raises:
        UserError: gradient clipping or accumulation of the trainer, a model registry, or an average of shards.
    """
    if trainer.gradient_clip_val:
        raise UserError("Expected no trainer.gradient_clip_val, try model.optimization.max_grad_norm.")
    if trainer.gradient_clip_algorithm is not None:
        raise UserError(
            "Expected no trainer.gradient_clip_algorithm, because gradients are clipped by their norm alone, try "
            "model.optimization.max_grad_norm."
        )
    if trainer._model_registry is not None:
        raise UserError(
            "Expected no trainer.model_registry, because checkpoints are uploaded nowhere, try `export`, and the "
            "upload of your hub."
        )
    if trainer.accumulate_grad_batches != 1:
        raise UserError("Expected no trainer.accumulate_grad_batches, try model.optimization.micro_batch_size.")
    shards = isinstance(trainer.strategy, (FSDPStrategy, ModelParallelStrategy))
    if shards and any(isinstance(callback, WeightAveraging) for callback in trainer.callbacks):  # type: ignore[attr-defined]
        raise UserError(
            "Expected no WeightAveraging with weights in shards, because it averages whole ones, but got one, try "
            "strategy: ddp."
        )


def check_fit(trainer: Trainer) -> None:
    """Refuse callbacks and options of a fit that assume the loss of a batch.

    Raises:
        UserError: a finder of learning rates or batch sizes, a schedule of accumulation, pruning, `overfit_batches`,
            or no batches at all.
    """
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, (LearningRateFinder, BatchSizeFinder)):
            raise UserError(
                f"Expected no {type(callback).__name__}, because the loss of an update says nothing about the "
                "update's size, but got one, try a few values of model.optimizer.lr, or of data.prompts_per_update."
            )
        if isinstance(callback, GradientAccumulationScheduler):
            raise UserError(
                "Expected no GradientAccumulationScheduler, because an update takes its own steps, but got one, try "
                "model.optimization.micro_batch_size."
            )
        if isinstance(callback, ModelPruning):
            raise UserError(
                "Expected no ModelPruning, because rollouts and updates read a policy's weights by name, but got one, "
                "try to prune the exported policy."
            )
    if trainer.limit_train_batches == 0:
        raise UserError(
            "Expected trainer.limit_train_batches to leave updates, but got 0, try the command `validate`, which "
            "trains nothing."
        )
    overfit = trainer.overfit_batches  # type: ignore[attr-defined]
    if overfit:
        raise UserError(
            f"Expected trainer.overfit_batches to be 0, but got {overfit}, try fewer prompts, "
            "such as data.train_prompts=8, and more epochs."
        )


def check_precision(trainer: Trainer) -> None:
    """Reject precisions and devices that would corrupt multipliers or ratios.

    Raises:
        UserError: half-precision weights, float16 autocast, or MPS.
    """
    precision = str(trainer.precision)
    if precision in ("bf16-true", "16-true", "16-mixed"):
        raise UserError(
            f"Expected precision 32-true, bf16-mixed or 64-true, but got {precision}: multipliers and ratios need more "
            "digits than half-precision weights have, and gradients aren't rescaled; try bf16-mixed, or bfloat16 "
            "weights of the policy alone (policy.dtype, with LoRA)."
        )
    if isinstance(trainer.accelerator, MPSAccelerator):
        raise UserError("Expected a CPU or a CUDA device, but got MPS, which has no float64; try accelerator: cpu.")


def check_finished(progress: Progress, ended: bool = True) -> None:
    """Raise a `UserError` if code ended a loop of Lightning's with a StopIteration, about which Lightning is silent.

    Args:
        progress: of the loop, which counts a round as completed after the last hook.
        ended: the loop has no further round.
    """
    if not ended or progress.current.ready != progress.current.completed:
        raise UserError(
            "Expected all batches and all hooks of all callbacks to run, but some did not, because code raised "
            "StopIteration, which ends Lightning's loop, try `raise ValueError` to end the run, or "
            "trainer.should_stop=True to end it early."
        )
