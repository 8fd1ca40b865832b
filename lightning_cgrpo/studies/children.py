"""Child processes of several threads, and their termination."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

GRACE = 120.0
"""Seconds between a signal and the kill: a run first ends its update."""


class Stopped(Exception):  # noqa: N818
    """The study was stopped."""


class Children:
    """Child processes of several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self.stopped = False

    def call(self, command: Sequence[str] | str, output: Path, environment: Mapping[str, str]) -> int:
        """Run a command, words or a shell line, appending its output to a file; return its exit status.

        Raises:
            Stopped: if `terminate` was called before or meanwhile.
        """
        # Lightning would join a run to SLURM's whole job.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
        with output.open("ab") as file, self._lock:
            if self.stopped:
                raise Stopped
            process = subprocess.Popen(
                command,
                shell=isinstance(command, str),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**inherited, **environment},
                # A group of its own, so that Ctrl-C on a terminal reaches a child once, and a shell's children too.
                start_new_session=True,
            )
            self._running.add(process)
            if self.stopped:  # A signal came while the process started.
                process.terminate()
        status = process.wait()
        with self._lock:
            self._running.remove(process)
        if self.stopped:
            raise Stopped
        return status

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

    def _signal(self, number: signal.Signals) -> None:
        for process in list(self._running):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)


@contextlib.contextmanager
def ending(children: Children) -> Iterator[None]:
    """Context that ends the children on Ctrl-C, SIGTERM or an error."""

    def end(*_: Any) -> None:
        children.terminate()

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except BaseException:
        children.terminate()
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
