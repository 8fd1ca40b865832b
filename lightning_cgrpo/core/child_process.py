"""A forked process that answers over a pipe."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize
from typing import Any

import torch


class ChildProcess:
    """Runs ``serve(pipe, *arguments)`` in a forked process, until the caller closes `pipe`.

    The process ends with this object, and with the caller, however the caller ends. It is forked, because data sources
    and worlds hold functions that can't be pickled, and because importing torch takes seconds. A forked process has
    none of the caller's threads, so it computes on one thread. It must not use a GPU.
    """

    def __init__(self, name: str, serve: Callable[..., None], *arguments: Any) -> None:
        fork = multiprocessing.get_context("fork")
        self.pipe, child_pipe = fork.Pipe()
        child_arguments = (serve, child_pipe, self.pipe, arguments)
        self._process = fork.Process(target=_run_child, args=child_arguments, name=name, daemon=True)
        self._process.start()
        child_pipe.close()  # then reading ends when the process dies
        # Before multiprocessing's own end of children, which would wait for this one.
        self.end = Finalize(self, _end_child, (self._process, self.pipe), exitpriority=1)

    def status(self) -> int | None:
        """The exit status of a process whose pipe has ended."""
        self._process.join()
        return self._process.exitcode


def _end_child(process: Any, pipe: Connection) -> None:
    process.kill()
    process.join()
    pipe.close()


def _run_child(
    serve: Callable[..., None], pipe: Connection, caller_pipe: Connection, arguments: tuple[Any, ...]
) -> None:
    """Serve in the forked process until the caller closes the pipe or dies."""
    # Signals to a terminal's or a job's processes are the caller's matter: it finishes its update.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    caller_pipe.close()  # then reading ends when the caller dies
    gc.freeze()  # the caller's garbage is the caller's
    torch.set_num_threads(1)
    with contextlib.suppress(EOFError, ConnectionError):
        serve(pipe, *arguments)
    os._exit(0)
