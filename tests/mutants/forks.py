"""Functions in forks of this process, which end with what they return, or are killed after a time."""

import contextlib
import os
import signal
import time
from collections.abc import Callable


class Forks:
    """Forks of this process, a few at a time."""

    def __init__(self, processes: int) -> None:
        self.processes = processes
        self._running: dict[int, tuple[float, Callable[[bool, float], None]]] = {}

    def start(self, function: Callable[[], bool], limit: float, ended: Callable[[bool, float], None]) -> None:
        """Call a function in a fork, which is killed after `limit` seconds.

        Args:
            ended: called with whether the function returned True, and the fork's CPU seconds.
        """
        self._wait(self.processes - 1)
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)
            try:
                os._exit(0 if function() else 1)
            except BaseException as error:
                print(f"{type(error).__name__}: {error}", flush=True)
                os._exit(2)
        self._running[child] = time.monotonic() + limit, ended

    def end(self) -> None:
        self._wait(0)

    def _wait(self, most: int) -> None:
        while len(self._running) > most:
            for child, (deadline, ended) in list(self._running.items()):
                done, status, used = os.wait4(child, os.WNOHANG)
                if done or time.monotonic() > deadline:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(child, signal.SIGKILL)  # and the processes that it started
                    if not done:
                        _, status, used = os.wait4(child, 0)
                    del self._running[child]
                    ended(status == 0, used.ru_utime + used.ru_stime)
            time.sleep(0.02)
