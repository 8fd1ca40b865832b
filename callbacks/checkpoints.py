"""Checkpoints to go on from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint


class Checkpoints(ModelCheckpoint):
    """Lightning's `ModelCheckpoint`, whose ``last.ckpt`` is the end of training once training ends.

    Lightning writes it on multiples of `every_n_train_steps` only, so going on from ``last`` would repeat the rest, and
    testing ``last`` would measure an earlier policy.
    """

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
        # Here rather than when training has ended: by then Lightning has closed the epoch, and a longer run that goes
        # on from there would count one too many.
        if trainer.global_step == trainer.estimated_stepping_batches:
            self._save_end(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        # In the place of Lightning's, which would write a second file beside the first. Stopped before its time (by
        # another callback, or a time limit):
        if trainer.global_step != trainer.estimated_stepping_batches:
            self._save_end(trainer)

    def _save_end(self, trainer: Trainer) -> None:
        written = self._last_global_step_saved == trainer.global_step
        if self.save_last and self.dirpath and not written and not trainer.fast_dev_run:  # type: ignore[attr-defined]
            path = Path(self.dirpath) / f"{self.CHECKPOINT_NAME_LAST}{self.FILE_EXTENSION}"
            trainer.save_checkpoint(path, weights_only=self.save_weights_only)
