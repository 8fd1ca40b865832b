"""Child processes, their cost, and their termination."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

GRACE = 120.0
"""Seconds between a signal and the kill: a run first ends its update."""


class Stopped(Exception):  # noqa: N818
    """The study was stopped."""


@dataclass(frozen=True)
class Ended:
    """An ended process.

    Args:
        status: exit status; a signal's negative number.
        seconds: by the clock.
        cpu_seconds: of the process and its children.
        peak_mb: largest memory of the process or a child, in MiB.
    """

    status: int
    seconds: float
    cpu_seconds: float
    peak_mb: float


class Children:
    """Child processes of several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self.stopped = False

    def call(self, command: Sequence[str] | str, output: Path, environment: Mapping[str, str]) -> Ended:
        """Run a command to its end, appending its output to a file.

        Args:
            command: words, or a shell line.

        Raises:
            Stopped: before the command, if `terminate` was called.
        """
        started = time.monotonic()
        with output.open("ab") as file, self._lock:
            if self.stopped:
                raise Stopped
            process = subprocess.Popen(
                command,
                shell=isinstance(command, str),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**_inherited(), **environment},
                # A group of its own, so that Ctrl-C on a terminal reaches a child once, and a shell's children too.
                start_new_session=True,
            )
            self._running.add(process)
            if self.stopped:  # A signal came while the process started.
                process.terminate()
        # Unlike Popen.wait, wait4 tells the CPU time and memory of this child alone.
        _, status, usage = os.wait4(process.pid, 0)
        with self._lock:
            process.returncode = os.waitstatus_to_exitcode(status)
            self._running.remove(process)
        peak = usage.ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
        return Ended(process.returncode, time.monotonic() - started, usage.ru_utime + usage.ru_stime, peak)

    def terminate(self) -> None:
        """End all children and refuse new ones; a timeout or second call kills the rest.

        Signal handlers may call this method, because it takes no lock.
        """
        if self.stopped:
            self._signal(signal.SIGKILL)
            return
        self.stopped = True
        self._signal(signal.SIGTERM)
        timer = threading.Timer(GRACE, self._signal, [signal.SIGKILL])
        timer.daemon = True
        timer.start()

    def wait(self) -> None:
        while self._running:
            time.sleep(0.1)

    def _signal(self, number: signal.Signals) -> None:
        for process in list(self._running):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)


def _inherited() -> dict[str, str]:
    """The environment without SLURM's variables, because Lightning would join a run to the whole job."""
    return {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
