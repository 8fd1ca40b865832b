"""SIGTERM and Ctrl-C: the first signal ends a run after its update, the second at once."""

from __future__ import annotations

import _thread
import contextlib
import os
import select
import signal
import subprocess
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

from lightning_cgrpo.checkpoints import watchdog
from lightning_cgrpo.distributed import all_sum, world
from lightning_cgrpo.user_code import by_signal

GRACE = 60.0
"""Least seconds that an update may last after SIGTERM; see `watchdog.Clock`."""
SIGNALS = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}


class Termination(_SignalConnector):
    """Handles SIGTERM and SIGINT (Ctrl-C) during a run, because Lightning's handler leaves no checkpoint.

    The handler notes the first signal after the first update began; `Checkpoints` asks `agreed` after each update. Any
    other signal ends the process at once, with status 128 + the signal's number. A `watchdog` ends a process that can't
    run its handlers, or whose update doesn't end. In a notebook, without watchdog, a second Ctrl-C raises
    KeyboardInterrupt.
    """

    current: Termination | None = None

    def __init__(self, trainer: Trainer) -> None:
        super().__init__(trainer)
        self.defers = False
        self.received: signal.Signals | None = None
        self._at = 0.0
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._wakeup = -1

    def register_signal_handlers(self) -> None:
        super().register_signal_handlers()
        self.defers, self.received = False, None
        if threading.current_thread() is not threading.main_thread():
            return
        Termination.current = self
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # the shell ignores SIGINT for background jobs
                signal.signal(number, self._receive)
        if not hasattr(sys, "ps1"):
            self._start_watchdog()

    def teardown(self) -> None:
        self._stop_watchdog()
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

    def works(self) -> None:
        """Called when an update or a validation batch begins: a signal now waits for its end."""
        self._tell(watchdog.WORKS)
        self.defers = True

    def rests(self) -> None:
        """Called before files are written: the watchdog sets no deadline for writing."""
        self._tell(watchdog.RESTS)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        which = signal.Signals(number)
        if self._forced():
            _end(number)
        if self.received is not None and time.monotonic() - self._at < watchdog.REPEATED:
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

    def _start_watchdog(self) -> None:
        ends, self._wakeup = os.pipe()
        os.set_blocking(self._wakeup, False)
        # The run has no watchdog if another library uses the wakeup file descriptor.
        if (others := signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)) != -1:
            signal.set_wakeup_fd(others)
            os.close(self._wakeup)
        else:
            command = [sys.executable, "-I", "-S", watchdog.__file__, str(os.getpid()), str(GRACE)]
            self._watchdog = subprocess.Popen(command, stdin=ends, stdout=subprocess.PIPE)
        os.close(ends)

    def _stop_watchdog(self) -> None:
        if self._watchdog is not None:
            signal.set_wakeup_fd(-1)
            os.close(self._wakeup)
            self._watchdog.kill()
            self._watchdog.wait()
            assert self._watchdog.stdout is not None
            self._watchdog.stdout.close()
            self._watchdog = None

    def _forced(self) -> bool:
        """True if the watchdog is ending the run; Python merges delayed signals into one."""
        if self._watchdog is None or self._watchdog.stdout is None:
            return False
        said = bool(select.select([self._watchdog.stdout], [], [], 0)[0])
        # An empty read means that the watchdog has died.
        return said and os.read(self._watchdog.stdout.fileno(), 1) != b""

    def _tell(self, message: int) -> None:
        if self._watchdog is not None:
            # The run continues without a watchdog that was killed or stopped.
            with contextlib.suppress(BrokenPipeError, BlockingIOError):
                os.write(self._wakeup, bytes([message]))


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
    for process in watchdog.descendants(os.getpid()):
        watchdog.send(process, signal.SIGKILL)
    _aside(_leave_terminal)
    os._exit(128 + number)


def _leave_terminal() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    if os.isatty(1):
        os.write(1, b"\x1b[?25h\n")  # a progress bar has hidden the cursor


def _forget() -> None:
    """Reset the signal handlers in a forked process, such as a data loader's worker.

    SIGTERM ends the worker; Ctrl-C does not, because the parent's update needs its results.
    """
    if Termination.current is not None:
        Termination.current._watchdog = None
        Termination.current = None
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)


os.register_at_fork(after_in_child=_forget)
