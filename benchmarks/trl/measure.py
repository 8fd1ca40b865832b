"""Seconds of whole updates and rollouts, and their memory, in a process of their own.

CPUs: CPU seconds and resident memory. GPUs: wall seconds and GPU memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import logging
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from statistics import median
from typing import Any

import torch

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


def in_process(module: str, *arguments: str) -> dict[str, float]:
    """Run a module alone, on one thread; returns the JSON that it prints."""
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    numbers: dict[str, float] = json.loads(done.stdout)
    return numbers


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """One thread, no warnings, and whatever is printed on standard error: both sides print what they log."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    with contextlib.redirect_stdout(sys.stderr):
        yield


class Meter:
    """Measures updates after a first warm-up.

    Memory is the peak above the process after the warm-up: gradients, activations, keys and values. Model, reference,
    optimizer state and libraries were already loaded.
    """

    def __init__(self) -> None:
        self.ticks: list[float] = []
        self.seconds: list[float] = []
        """Time of each call of the timed function."""
        self.resident = 0

    def update_ended(self) -> None:
        if not self.ticks:
            gc.collect()
            _return_memory()
            self.resident = _memory(peak=False)
        self.ticks.append(_clock())

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def measured(*args: Any, **kwargs: Any) -> Any:
            started = _clock()
            result = function(*args, **kwargs)
            self.seconds.append(_clock() - started)
            return result

        return measured

    def results(self) -> dict[str, float]:
        """Medians over measured updates: seconds and megabytes."""
        updates = [after - before for before, after in zip(self.ticks, self.ticks[1:], strict=False)]
        rollouts = self.seconds[1:]
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
        return kilobytes("VmHWM" if peak else "VmRSS")
    if peak:
        return torch.cuda.max_memory_allocated() // 1024
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated() // 1024


def kilobytes(field: str) -> int:
    """A field of this process's status, as VmRSS or its peak VmHWM."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def _return_memory() -> None:
    ctypes.CDLL(None).malloc_trim(0)
