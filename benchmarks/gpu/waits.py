"""Waits of the host for the device, counted by line."""

from __future__ import annotations

import contextlib
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import torch
from lightning.pytorch import Callback


@contextlib.contextmanager
def counting(pretended: Counter[Any]) -> Iterator[Counter[str]]:
    """Counts by line of code, complete at the end of the context.

    Args:
        pretended: counts by the pretended device; empty on a GPU, whose waits are PyTorch's warnings.
    """
    lines: Counter[str] = Counter()
    pretended.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if torch.cuda.is_available():
            torch.cuda.set_sync_debug_mode("warn")
        try:
            yield lines
        finally:
            if torch.cuda.is_available():
                torch.cuda.set_sync_debug_mode("default")
    lines.update({f"{line} ({kind})": count for (kind, line), count in pretended.items()})
    synchronizing = [warning for warning in caught if "synchroniz" in str(warning.message)]
    lines.update(f"{Path(warning.filename).name}:{warning.lineno}" for warning in synchronizing)


class Waits(Callback):
    """Counts the host's waits by line of code; `lines` holds the last update's counts."""

    pretended: ClassVar[Counter[Any]] = Counter()
    """Counts by the pretended device."""
    lines: ClassVar[Counter[str]] = Counter()

    def on_train_batch_start(self, trainer: Any, *args: Any) -> None:
        self.recording = contextlib.ExitStack()
        self.counts = self.recording.enter_context(counting(self.pretended))

    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        self.recording.close()
        self.lines.clear()
        self.lines.update(self.counts)
