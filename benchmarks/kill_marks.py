"""A callback that marks a run's progress, so `kill_loop` can time its kills."""

from __future__ import annotations

import os
from typing import Any

from lightning.pytorch import Callback, Trainer


class Marks(Callback):
    """Appends a line for every started update and validation batch, on the first process.

    Args:
        path: of the file. Named in the configuration, because a file that code names is told at a resume.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def on_train_batch_start(self, trainer: Trainer, *args: Any) -> None:
        self._write(trainer, "update")

    def on_validation_batch_start(self, trainer: Trainer, *args: Any) -> None:
        self._write(trainer, "validation")

    def _write(self, trainer: Trainer, what: str) -> None:
        if trainer.is_global_zero:
            file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(file, f"{what} {trainer.global_step}\n".encode())
            os.close(file)
