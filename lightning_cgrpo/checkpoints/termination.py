"""SIGTERM and Ctrl-C: the first signal ends a run after its update, the second at once."""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.trainer.connectors.signal_connector import _SignalConnector
from lightning.pytorch.utilities import rank_zero_only

from lightning_cgrpo.distributed import all_sum, world
from lightning_cgrpo.user_code import by_signal

SIGNALS = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}
REPEATED = 1.0
"""Seconds within which a repeated signal counts once, because `timeout` and torchrun send two."""


class Termination(_SignalConnector):
    """Handles SIGTERM and SIGINT (Ctrl-C) during a run, because Lightning's handler leaves no checkpoint.

    The handler notes the first signal once the run `defers` signals; `Checkpoints` asks `agreed` after each update. Any
    other signal ends the process at once, with status 128 + the signal's number. In a notebook, a second Ctrl-C raises
    KeyboardInterrupt. Python runs no handler while native code waits, so only SIGKILL ends such a process.
    """

    current: Termination | None = None

    def __init__(self, trainer: Trainer) -> None:
        super().__init__(trainer)
        self.defers = False
        """True once an update may run, after which there is something to save."""
        self.received: signal.Signals | None = None
        self._at = 0.0

    def register_signal_handlers(self) -> None:
        super().register_signal_handlers()
        self.defers, self.received = False, None
        if threading.current_thread() is not threading.main_thread():
            return
        Termination.current = self
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # the shell ignores SIGINT for background jobs
                signal.signal(number, self._receive)

    def teardown(self) -> None:
        super().teardown()  # puts the handlers back
        if Termination.current is self:
            Termination.current = None

    def agreed(self) -> signal.Signals | None:
        """The signal that any process received, SIGTERM before SIGINT; None without a signal. Collective."""
        if world()[1] == 1:
            return self.received
        mine = [float(self.received is number) for number in (signal.SIGINT, signal.SIGTERM)]
        interrupted, terminated = all_sum(torch.tensor(mine, device=self.trainer.strategy.root_device)).tolist()
        return signal.SIGTERM if terminated else signal.SIGINT if interrupted else None

    def _receive(self, number: int, frame: FrameType | None) -> None:
        which = signal.Signals(number)
        if self.received is not None and time.monotonic() - self._at < REPEATED:
            return
        first, self.received, self._at = self.received is None, which, time.monotonic()
        if first and self.defers:
            _aside(say, f"\n{SIGNALS[which]}: last.ckpt is written after this update; a second one ends at once.")
        elif which is signal.SIGINT and hasattr(sys, "ps1"):
            raise by_signal(KeyboardInterrupt())
        elif which is signal.SIGINT and first:
            raise by_signal(SystemExit(128 + number))
        else:
            _end(number)


def say(message: str) -> None:
    """Print on the first process, above the progress bar."""
    if rank_zero_only.rank == 0:  # type: ignore[attr-defined] # set by Lightning
        print(message, file=sys.stderr, flush=True)


def _aside(function: Callable[..., Any], *arguments: Any) -> None:
    """Call a function in another thread for up to a second: the interrupted thread may hold the function's locks."""
    done = _thread.allocate_lock()
    done.acquire()

    def call() -> None:
        try:
            function(*arguments)
        finally:
            done.release()

    # Not threading's function, because it takes a lock.
    _thread.start_new_thread(call, ())
    done.acquire(timeout=1.0)


def _end(number: int) -> None:
    for process in descendants(os.getpid()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    _aside(_leave_terminal)
    os._exit(128 + number)


def _leave_terminal() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    if os.isatty(1):
        os.write(1, b"\x1b[?25h\n")  # a progress bar has hidden the cursor


def descendants(process: int) -> list[int]:
    """Process ids of all descendants on Linux; elsewhere []."""
    parents = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc") else []:
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    # The name of a process, which may hold any character, ends at the last parenthesis.
                    parents[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):  # ended meanwhile
                continue
    family = [process]
    for parent in family:
        family += [child for child, its_parent in parents.items() if its_parent == parent]
    return family[1:]


def _forget() -> None:
    """Reset the signal handlers in a forked process, such as a data loader's worker.

    SIGTERM ends the worker; Ctrl-C does not, because the parent's update needs its results.
    """
    if Termination.current is not None:
        Termination.current = None
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)


os.register_at_fork(after_in_child=_forget)
