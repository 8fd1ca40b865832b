"""Functions in forks of this process, which end with what they return, or are killed after a time."""

import contextlib
import os
import signal
import time
from collections.abc import Callable
from typing import Any


class Forks:
    """Forks of this process, a few at a time."""

    def __init__(self, processes: int) -> None:
        self.processes = processes
        self._running: dict[int, tuple[Any, float]] = {}
        self._results: dict[Any, str] = {}

    def start(self, name: Any, function: Callable[[], int], limit: float) -> None:
        """Call a function in a fork, which ends with its status, and is killed after `limit` seconds."""
        self._wait(self.processes - 1)
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)
            try:
                os._exit(function())
            except BaseException as error:
                print(f"{type(error).__name__}: {error}", flush=True)
                os._exit(2)
        self._running[child] = name, time.monotonic() + limit

    def end(self) -> dict[Any, str]:
        """By name, "survived" if the function returned 0, as it does if all tests pass, else "killed"."""
        self._wait(0)
        return self._results

    def _wait(self, most: int) -> None:
        while len(self._running) > most:
            for child, (name, deadline) in list(self._running.items()):
                ended, status = os.waitpid(child, os.WNOHANG)
                if ended or time.monotonic() > deadline:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(child, signal.SIGKILL)  # and the processes that it started
                    if not ended:
                        os.waitpid(child, 0)
                    del self._running[child]
                    self._results[name] = "survived" if ended and status == 0 else "killed"
                    print(f"{self._results[name]:8} {getattr(name, 'text', name)}", flush=True)
            time.sleep(0.02)
