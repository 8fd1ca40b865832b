"""CPU seconds of whole updates and of their rollouts, and the memory that they take."""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from statistics import median
from typing import Any


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
            self.resident = _kilobytes("VmRSS")
        self.ticks.append(time.process_time())

    def timed_rollout(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, the time of whose calls counts as that of rollouts."""

        @wraps(function)
        def measured(*args: Any, **kwargs: Any) -> Any:
            started = time.process_time()
            result = function(*args, **kwargs)
            self.rollouts.append(time.process_time() - started)
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
            "memory": (_kilobytes("VmHWM") - self.resident) / 1024,
            "updates": len(updates),
        }


def _kilobytes(field: str) -> int:
    """Of Linux's account of this process, the resident size now or at its peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def _return_memory() -> None:
    """What the C library keeps of freed memory isn't in use."""
    ctypes.CDLL(None).malloc_trim(0)
