"""Costs of a run in all its parts: time, CPU time, memory and answers."""

from __future__ import annotations

import os
import platform
import resource
import sys
import time
from importlib.metadata import version
from pathlib import Path

import torch

from lightning_cgrpo.run.record import Machine, RunRecord


class Clock:
    """Counts since this process made it, on top of an earlier part's."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._before = RunRecord()
        self.answers = 0

    def add(self, before: RunRecord) -> None:
        """Count on from the record of the run's earlier part."""
        self._before = before
        self.answers = before.answers or 0

    def write(self, record: RunRecord) -> None:
        """Put the counts into a record."""
        usages = [resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)]
        cpu_seconds = sum(usage.ru_utime + usage.ru_stime for usage in usages)
        units_per_mb = 2**20 if sys.platform == "darwin" else 2**10
        peak_mb = max(usage.ru_maxrss for usage in usages) / units_per_mb
        before = self._before
        record.answers = self.answers or None
        record.seconds = round((before.seconds or 0) + time.monotonic() - self._began, 1)
        record.cpu_seconds = round((before.cpu_seconds or 0) + cpu_seconds, 1)
        record.peak_mb = round(max(before.peak_mb or 0, peak_mb))


def machine(device: torch.device) -> Machine:
    """This machine and its versions."""
    return Machine(
        cpu=_cpu_name(),
        cores=os.cpu_count(),
        gpu=torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        python=platform.python_version(),
        torch=version("torch"),
        lightning=version("lightning"),
    )


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()
