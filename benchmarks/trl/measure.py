"""Seconds of whole updates and of their rollouts, and the memory that they take.

On a CPU these are CPU seconds and resident memory; on a GPU, seconds on the clock and the GPU's memory.
"""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from statistics import median
from typing import Any

import torch


class Meter:
    """Told when an update ends; the first one is a warm-up.

    Memory is the process's peak over its size when the warm-up had ended: the model, the reference, the optimizer's
    state and all libraries were there already, so what is left are gradients, activations, keys and values.
    """

    def __init__(self) -> None:
        self.ticks: list[float] = []
        self.rollouts: list[float] = []
        self.resident = 0

    def update_ended(self) -> None:
        if not self.ticks:
            gc.collect()
            _return_memory()
            self.resident = _memory(peak=False)
        self.ticks.append(_clock())

    def timed_rollout(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, the time of whose calls counts as that of rollouts."""

        @wraps(function)
        def measured(*args: Any, **kwargs: Any) -> Any:
            started = _clock()
            result = function(*args, **kwargs)
            self.rollouts.append(_clock() - started)
            return result

        return measured

    def results(self) -> dict[str, float]:
        """Medians over the updates that were measured: seconds, and megabytes."""
        updates = [after - before for before, after in zip(self.ticks, self.ticks[1:], strict=False)]
        rollouts = self.rollouts[1:]
        trainings = [update - rollout for update, rollout in zip(updates, rollouts, strict=True)]
        return {
            "update": median(updates),
            "rollout": median(rollouts),
            "training": median(trainings),
            "memory": (_memory(peak=True) - self.resident) / 1024,
            "updates": len(updates),
        }


def _clock() -> float:
    if not torch.cuda.is_available():
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def _memory(peak: bool) -> int:
    """Kilobytes in use now, or at the peak since the last look at the current use."""
    if not torch.cuda.is_available():
        return _kilobytes("VmHWM" if peak else "VmRSS")
    if peak:
        return torch.cuda.max_memory_allocated() // 1024
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated() // 1024


def _kilobytes(field: str) -> int:
    """Of Linux's account of this process, the resident size now or at its peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def _return_memory() -> None:
    """What the C library keeps of freed memory isn't in use."""
    ctypes.CDLL(None).malloc_trim(0)
