"""Checkpoint files of a run: written completely or not at all, into a folder of the run alone, and found again."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any

from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint, OnExceptionCheckpoint

from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.run.checkpoints.files import CHECKPOINTS, LAST, is_remote, newest
from lightning_cgrpo.run.checkpoints.folder_lock import FolderLock
from lightning_cgrpo.run.checkpoints.plugin import CheckpointFiles, write_error, write_failure
from lightning_cgrpo.run.checkpoints.replacement import (
    UNFINISHED,
    remove_checkpoint,
    remove_unfinished,
    replace_checkpoint,
)


class SafeCheckpoints(ModelCheckpoint):
    """`ModelCheckpoint` whose files are whole.

    - A checkpoint gets its name once completely on the disk, after the loggers' buffers.
    - Unfinished files of killed runs are removed.
    - A folder belongs to one run: another run's checkpoints there, or a run that still writes, are refused. Two runs
      get one folder by `dirpath`, or if they start at once with one version of the logger.
    - ``ckpt_path="last"`` is the newest checkpoint of all versions; see `newest`.

    Args:
        args: of `ModelCheckpoint`.
        kwargs: of `ModelCheckpoint`.
    """

    changes_learning = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._began = 0.0
        self._exclusive = False
        self._lock = FolderLock()

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        # Without a dirpath and a logger, runs follow each other in one folder.
        self._exclusive = self.dirpath is not None or bool(trainer.loggers)
        with warnings.catch_warnings():
            # Resumed runs may write to the folder of their checkpoint.
            warnings.filterwarnings("ignore", message="Checkpoint directory .* exists and is not empty")
            super().setup(trainer, pl_module, stage)
        self._began = time.time()
        if type(trainer.strategy.checkpoint_io) is TorchCheckpointIO:
            trainer.strategy.checkpoint_io = CheckpointFiles()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        _check_one_checkpoint(trainer)
        if trainer.is_global_zero:
            self._remove_remains(trainer)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_fit_start(trainer, pl_module)
        if self._exclusive and not is_remote(self.dirpath) and not trainer.fast_dev_run:  # type: ignore[attr-defined]
            self._check_free(trainer)

    def _check_free(self, trainer: Trainer) -> None:
        """Lock `dirpath`, and refuse to overwrite another run's checkpoints there. Collective."""
        folder = Path(str(self.dirpath))
        continues = bool(self._last_checkpoint_saved) or _lies_in(trainer.ckpt_path, folder)
        occupant = ""
        if trainer.is_global_zero:
            last = None if continues else newest([folder])
            if not self._lock.take(folder):
                occupant = "a running fit that writes there"
            elif last is not None:
                occupant = str(last)
        occupant = trainer.strategy.broadcast(occupant)
        if occupant:
            self._lock.release()
            raise UserError(
                f"Expected the folder of checkpoints to be this run's alone, but got '{folder}' with {occupant}, "
                "because both would write last.ckpt, try another dirpath or another trainer.logger.version, or "
                "--ckpt_path=last to go on with a run that has ended."
            )
        if continues:  # otherwise Lightning writes last-v1.ckpt beside the last.ckpt that a resume takes
            self.last_model_path = str(folder / LAST)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        super().teardown(trainer, pl_module, stage)
        self._lock.release()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        super().on_exception(trainer, pl_module, exception)
        self._lock.release()

    def _find_last_checkpoints(self, trainer: Trainer) -> set[str]:
        logger = trainer.loggers[0] if trainer.loggers else None
        if self.dirpath is None and logger is not None:
            run = Path(logger.save_dir or trainer.default_root_dir, str(logger.name))
            place = run / "*" / CHECKPOINTS
            folders = list(run.glob(f"*/{CHECKPOINTS}"))
        else:
            place = Path(self.dirpath or Path(trainer.default_root_dir, CHECKPOINTS))
            folders = [place]
        last = newest(folders)
        if last is not None:
            return {str(last)}
        if any(isinstance(other, OnExceptionCheckpoint) for other in trainer.checkpoint_callbacks):
            return set()  # that callback asks without the user's request
        raise UserError(f'Expected a checkpoint {place}/last.ckpt for ckpt_path="last", but found none.')

    def _remove_remains(self, trainer: Trainer) -> None:
        """Remove unfinished files of killed runs."""
        if self.dirpath and not is_remote(self.dirpath):
            remove_unfinished(Path(self.dirpath))
        resumed_from = Path(trainer.ckpt_path or "").parent
        if resumed_from.name == CHECKPOINTS and not is_remote(trainer.ckpt_path):
            # A running process writes files that changed later.
            remove_unfinished(resumed_from, before=self._began)

    def _save_checkpoint(self, trainer: Trainer, filepath: str) -> None:
        for logger in trainer.loggers:
            logger.save()
        if is_remote(filepath):
            super()._save_checkpoint(trainer, filepath)
            return
        # A sharded checkpoint, a directory with a file per process, also gets its name last.
        target = Path(filepath)
        unfinished = target.with_name(f"{target.stem}{UNFINISHED}")
        try:
            trainer.save_checkpoint(unfinished, self.save_weights_only)
        except BaseException as error:  # torch's error for sharded checkpoints is no Exception
            cause = write_failure(error, unfinished)
            if cause is None:
                raise
            if trainer.is_global_zero:
                remove_checkpoint(unfinished)
            raise write_error(target, cause) from error
        trainer.strategy.barrier()
        if trainer.is_global_zero:
            replace_checkpoint(unfinished, target)
        trainer.strategy.barrier()
        self._last_global_step_saved = trainer.global_step
        self._last_checkpoint_saved = filepath
        if trainer.is_global_zero:
            for logger in trainer.loggers:
                logger.after_save_checkpoint(self)


def _lies_in(checkpoint: Any, folder: Path) -> bool:
    return checkpoint is not None and Path(str(checkpoint)).parent.resolve() == folder.resolve()


def _check_one_checkpoint(trainer: Trainer) -> None:
    """Refuse to resume from different checkpoints in different processes. Collective."""
    first = trainer.strategy.broadcast(trainer.ckpt_path)
    if str(first) != str(trainer.ckpt_path):
        raise UserError(
            f"Expected all processes to resume from one checkpoint, but got '{trainer.ckpt_path}' in process "
            f"{trainer.global_rank} and '{first}' in the first, try a folder that all nodes share."
        )
