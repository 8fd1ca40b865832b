"""A callback that says where a run is, so that `kill_loop` can choose when to kill it."""

from __future__ import annotations

import os
from typing import Any

from lightning.pytorch import Callback, Trainer


class Marks(Callback):
    """Appends a line to a file for every update and every batch of validation that begins, on the first process.

    Args:
        path: of the file.
    """

    def __init__(self, path: str = "marks.txt") -> None:
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
