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
        usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        cpu = sum(one.ru_utime + one.ru_stime for one in usage)
        peak = max(one.ru_maxrss for one in usage) / (2**20 if sys.platform == "darwin" else 2**10)
        before = self._before
        record.answers = self.answers or None
        record.seconds = round((before.seconds or 0) + time.monotonic() - self._began, 1)
        record.cpu_seconds = round((before.cpu_seconds or 0) + cpu, 1)
        record.peak_mb = round(max(before.peak_mb or 0, peak))


def machine(device: torch.device) -> Machine:
    """This machine and its versions."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return Machine(
        cpu=models[0] if models else platform.processor(),
        cores=os.cpu_count(),
        gpu=torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        python=platform.python_version(),
        torch=version("torch"),
        lightning=version("lightning"),
    )
