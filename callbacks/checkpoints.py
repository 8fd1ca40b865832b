"""Checkpoints to go on from."""

from __future__ import annotations

import shutil
import signal
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities import rank_zero_info

from lightning_cgrpo.checkpoint_files import (
    UNFINISHED,
    CheckpointFiles,
    is_remote,
    put,
    remove_unfinished,
    unwritten,
)
from lightning_cgrpo.distributed import all_sum

TERMINATED = 128 + signal.SIGTERM
"""What a process returns that has ended because it was asked to."""
FOLDER = "checkpoints"
"""Where Lightning puts them, within the folder of a run's version."""


class Checkpoints(ModelCheckpoint):
    """Lightning's `ModelCheckpoint`, such that a run that ends at any moment goes on as if it had not.

    - ``last.ckpt`` is the end of training once training ends. Lightning writes it on multiples of
      `every_n_train_steps` only, so going on from ``last`` would repeat the rest, and testing ``last`` would measure an
      earlier policy.
    - A checkpoint gets its name when all of it is on the disk. One that is being written never costs the former.
    - Loggers write out what they hold before a checkpoint is written: no update before it is missing in the logs.
    - SIGTERM, which schedulers send before they kill, writes ``last.ckpt``, also without `save_last`, at the end of the
      update, or of the batch of validation, that it comes in, and all processes end, the first one with status 143. A
      run that has made its last update ends as it would have.
    - A validation that a checkpoint comes before, or in the middle of, is done when the run goes on.
    """

    _began = 0.0
    _terminated = False
    _validation_due = False

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        self._began = time.time()
        if type(trainer.strategy.checkpoint_io) is TorchCheckpointIO:
            trainer.strategy.checkpoint_io = CheckpointFiles()

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        super().on_train_start(trainer, pl_module)
        self._terminated = False
        if trainer.is_global_zero:
            # Of a run that was killed.
            if self.dirpath and not is_remote(self.dirpath):
                remove_unfinished(Path(self.dirpath))
            former = Path(trainer.ckpt_path or "").parent
            if former.name == FOLDER and not is_remote(trainer.ckpt_path):
                # What has changed since is being written by a run that wasn't killed.
                remove_unfinished(former, before=self._began)
        if threading.current_thread() is threading.main_thread():
            # In the place of Lightning's, whose collective inside of the handler meets others in any order; Lightning
            # puts back what was there before.
            signal.signal(signal.SIGTERM, self._note_termination)

    def _note_termination(self, number: int, frame: FrameType | None) -> None:
        self._terminated = True

    def on_train_batch_start(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        # A run that goes on after the last update of an epoch doesn't count the next epoch as begun, and would be
        # taken for something else when it goes on once more.
        epochs = trainer.fit_loop.epoch_progress
        for progress in (epochs.total, epochs.current):
            progress.ready = progress.started = progress.processed + 1  # type: ignore[attr-defined]

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._validation_due = _validation_due(trainer)
        if not (self._validation_due and _at_end(trainer)):
            self._save(trainer, pl_module)
        self._end_if_asked(trainer)

    def on_validation_start(self, trainer: Trainer, pl_module: Any) -> None:
        super().on_validation_start(trainer, pl_module)
        self._validation_due = _within_training(trainer)

    def on_validation_batch_end(self, trainer: Trainer, pl_module: Any, *args: Any) -> None:
        super().on_validation_batch_end(trainer, pl_module, *args)
        if _within_training(trainer):
            self._end_if_asked(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        self._validation_due = False
        super().on_validation_end(trainer, pl_module)
        # Lightning goes on with no run that has reached its end, so that one that is killed in its last validation has
        # to go on from before.
        if _within_training(trainer) and _at_end(trainer):
            self._save(trainer, pl_module)

    def _save(self, trainer: Trainer, pl_module: Any) -> None:
        super().on_train_batch_end(trainer, pl_module, None, None, 0)
        # Here rather than when training has ended: by then Lightning has closed the epoch, and a longer run that goes
        # on from there would count one too many.
        if self.save_last and _at_end(trainer):
            self._save_last(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        # In the place of Lightning's, which would write a second file beside the first. Stopped before its time (by
        # another callback, or a time limit):
        if self.save_last and not _at_end(trainer):
            self._save_last(trainer)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        if self._validation_due:
            _mark_validation_due(checkpoint["loops"]["fit_loop"])

    def _end_if_asked(self, trainer: Trainer) -> None:
        asked = torch.tensor(float(self._terminated), device=trainer.strategy.root_device)
        # All together, whoever has been asked: what they do next needs all.
        if not bool(all_sum(asked)) or _at_end(trainer):
            return
        self._save_last(trainer)
        rank_zero_info(f"Terminated after update {trainer.global_step}; --ckpt_path=last goes on from there.")
        trainer.strategy.barrier()
        # Lightning kills the first process, which is the one that is waited for, where another one reports an error.
        raise SystemExit(TERMINATED if trainer.is_global_zero else 0)

    def _save_last(self, trainer: Trainer) -> None:
        path = f"{self.dirpath}/{self.CHECKPOINT_NAME_LAST}{self.FILE_EXTENSION}"
        # With `save_last` it is written, or linked, whenever another is; without, another may be of this update alone.
        written = self._last_global_step_saved == trainer.global_step and (
            self.save_last or self._last_checkpoint_saved == path
        )
        if self.dirpath and not written and not trainer.fast_dev_run:  # type: ignore[attr-defined]
            self._save_checkpoint(trainer, path)

    def _save_checkpoint(self, trainer: Trainer, filepath: str) -> None:
        for logger in trainer.loggers:
            logger.save()
        if is_remote(filepath):
            super()._save_checkpoint(trainer, filepath)
            return
        # Also of a sharded checkpoint, which is a directory with a file of each process, nothing has the name before
        # all of it is there.
        target = Path(filepath)
        unfinished = target.with_name(f"{target.stem}{UNFINISHED}")
        try:
            trainer.save_checkpoint(unfinished, self.save_weights_only)
        except BaseException as error:  # torch's, of a sharded checkpoint, is no Exception
            from lightning_cgrpo.sharded_checkpoints import write_failure

            cause = write_failure(error, unfinished)
            if cause is None:
                raise
            if trainer.is_global_zero:
                shutil.rmtree(unfinished, ignore_errors=True)
            raise unwritten(target, cause) from error
        trainer.strategy.barrier()
        if trainer.is_global_zero:
            put(unfinished, target)
        trainer.strategy.barrier()
        self._last_global_step_saved = trainer.global_step
        self._last_checkpoint_saved = filepath
        if trainer.is_global_zero:
            for logger in trainer.loggers:
                logger.after_save_checkpoint(self)


def _at_end(trainer: Trainer) -> bool:
    return trainer.global_step == trainer.estimated_stepping_batches


def _within_training(trainer: Trainer) -> bool:
    """Of a validation: not one by itself, nor the one before training."""
    return trainer.state.fn == "fit" and not trainer.sanity_checking


def _validation_due(trainer: Trainer) -> bool:
    """Whether validation follows, asked when an update ends."""
    loop = trainer.fit_loop
    assert loop._data_fetcher is not None
    return any(trainer.num_val_batches) and loop.epoch_loop._should_check_val_fx(loop._data_fetcher)


def _mark_validation_due(loops: dict[str, Any]) -> None:
    """Make the progress of Lightning's loops that of a run in the first batch of validation, which it begins anew.

    As they are when an update ends, Lightning would take the validation for done.
    """
    update = loops["epoch_loop.batch_progress"]
    for progress in (update["total"], update["current"]):
        progress["completed"] = progress["processed"]
    validation = loops["epoch_loop.val_loop.batch_progress"]
    for progress in (validation["total"], validation["current"]):
        progress.update(ready=1, started=1, processed=0, completed=0)
    validation["is_last_batch"] = False
