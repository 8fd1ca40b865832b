"""Seconds of whole updates and rollouts, and their memory.

CPUs: CPU seconds and resident memory. GPUs: wall seconds and GPU memory.
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
    """Measures updates after a first warm-up.

    Memory is the peak above the process after the warm-up: gradients, activations, keys and values. Model, reference,
    optimizer state and libraries were already loaded.
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
        @wraps(function)
        def measured(*args: Any, **kwargs: Any) -> Any:
            started = _clock()
            result = function(*args, **kwargs)
            self.rollouts.append(_clock() - started)
            return result

        return measured

    def results(self) -> dict[str, float]:
        """Medians over measured updates: seconds and megabytes."""
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
    """Kilobytes now, or the peak: of the process (CPU), or since the last call for now (GPU)."""
    if not torch.cuda.is_available():
        return _kilobytes("VmHWM" if peak else "VmRSS")
    if peak:
        return torch.cuda.max_memory_allocated() // 1024
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated() // 1024


def _kilobytes(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def _return_memory() -> None:
    ctypes.CDLL(None).malloc_trim(0)
