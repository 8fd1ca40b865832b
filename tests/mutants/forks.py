"""Functions in forks of this process, which end with what they return, or are killed after a time."""

import contextlib
import os
import signal
import time
from collections.abc import Callable

Ended = Callable[[str | None, float], None]


class Forks:
    """Forks of this process, a few at a time."""

    def __init__(self, processes: int) -> None:
        self.processes = processes
        self._running: dict[int, tuple[float, int, Ended]] = {}

    def start(self, function: Callable[[], str], limit: float, ended: Ended) -> None:
        """Call a function in a fork, which is killed after `limit` seconds.

        Args:
            ended: called with what the function returned, None for a crash, and with the fork's CPU seconds.
        """
        self._wait(self.processes - 1)
        told, tells = os.pipe()
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)
            try:
                os.write(tells, function().encode())
                os._exit(0)
            except BaseException as error:
                print(f"{type(error).__name__}: {error}", flush=True)
                os._exit(1)
        os.close(tells)
        self._running[child] = time.monotonic() + limit, told, ended

    def end(self) -> None:
        self._wait(0)

    def _wait(self, most: int) -> None:
        while len(self._running) > most:
            for child, (deadline, told, ended) in list(self._running.items()):
                done, status, used = os.wait4(child, os.WNOHANG)
                if done or time.monotonic() > deadline:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(child, signal.SIGKILL)  # and the processes that it started
                    if not done:
                        _, status, used = os.wait4(child, 0)
                    text = b""
                    os.set_blocking(told, False)  # a process that the fork left may hold the other end
                    with contextlib.suppress(BlockingIOError):
                        text = os.read(told, 4096)
                    os.close(told)
                    del self._running[child]
                    ended(text.decode() if status == 0 else None, used.ru_utime + used.ru_stime)
            time.sleep(0.02)
