"""Waits of the host for the device, counted by line."""

from __future__ import annotations

import contextlib
import warnings
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import torch
from lightning.pytorch import Callback


class Waits(Callback):
    """Counts the host's waits by line of code; `lines` holds the last update's counts."""

    pretended: ClassVar[Counter[Any]] = Counter()
    """Counts by the pretended device."""
    lines: ClassVar[Counter[str]] = Counter()

    def on_train_batch_start(self, trainer: Any, *args: Any) -> None:
        self.pretended.clear()
        self.recording = contextlib.ExitStack()
        self.caught = self.recording.enter_context(warnings.catch_warnings(record=True))
        warnings.simplefilter("always")
        if torch.cuda.is_available():
            torch.cuda.set_sync_debug_mode("warn")

    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        if torch.cuda.is_available():
            torch.cuda.set_sync_debug_mode("default")
        self.recording.close()
        self.lines.clear()
        self.lines.update({f"{line} ({kind})": count for (kind, line), count in self.pretended.items()})
        found = [warning for warning in self.caught if "synchroniz" in str(warning.message)]
        self.lines.update(f"{Path(warning.filename).name}:{warning.lineno}" for warning in found)
