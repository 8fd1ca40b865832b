"""SIGTERM and Ctrl-C: the first signal ends a run after its update, the second at once."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import threading
import time
from multiprocessing import active_children
from types import FrameType

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.trainer.connectors.signal_connector import _SignalConnector
from lightning.pytorch.utilities import rank_zero_only

from lightning_cgrpo.core.distributed import all_sum, world
from lightning_cgrpo.core.user_code import by_signal

SIGNALS = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}
GRACE = 600
"""Seconds that an update may last after SIGTERM; three times the longest update, if longer."""
REPEATED = 1.0
"""Seconds within which a repeated signal counts once, because `timeout` and torchrun send two."""


class Termination(_SignalConnector):
    """Handles SIGTERM and SIGINT (Ctrl-C) during a run, because Lightning's handler leaves no checkpoint.

    The handler notes the first signal after the first update began; `Checkpoints` asks `agreed` after each update. Any
    other signal ends the process at once, with status 128 + the signal's number; in a notebook, Ctrl-C raises
    KeyboardInterrupt. The kernel's alarm ends an update that hangs after SIGTERM. A process that waits in native code
    runs no handler, and needs SIGKILL.
    """

    current: Termination | None = None

    def __init__(self, trainer: Trainer) -> None:
        super().__init__(trainer)
        self.defers = False
        """True once updates have begun, so that a signal waits for the end of one."""
        self.received: signal.Signals | None = None
        self._at = 0.0
        self._asked: float | None = None
        self._longest = 0.0  # seconds between two calls of `agreed`

    def register_signal_handlers(self) -> None:
        super().register_signal_handlers()
        self.defers, self.received, self._asked, self._longest = False, None, None, 0.0
        if threading.current_thread() is not threading.main_thread():
            return
        Termination.current = self
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # the shell ignores SIGINT for background jobs
                signal.signal(number, self._receive)

    def teardown(self) -> None:
        if self.received is not None:
            signal.alarm(0)  # of a signal after the last update
        super().teardown()  # puts the handlers back
        if Termination.current is self:
            Termination.current = None

    def agreed(self) -> signal.Signals | None:
        """The signal that any process received, SIGTERM before SIGINT; None without a signal. Collective."""
        if self.received is not None:
            signal.alarm(0)
        now = time.monotonic()
        self._longest = max(self._longest, now - (self._asked or now))
        self._asked = now
        if world()[1] == 1:
            return self.received
        mine = [float(self.received is number) for number in (signal.SIGINT, signal.SIGTERM)]
        interrupted, terminated = all_sum(torch.tensor(mine, device=self.trainer.strategy.root_device)).tolist()
        return signal.SIGTERM if terminated else signal.SIGINT if interrupted else None

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None and time.monotonic() - self._at < REPEATED:
            return
        first, self.received, self._at = self.received is None, signal.Signals(number), time.monotonic()
        if first and self.defers:
            if number == signal.SIGTERM:
                signal.alarm(math.ceil(max(GRACE, 3 * self._longest)))
            if rank_zero_only.rank == 0:  # type: ignore[attr-defined] # set by Lightning
                name = SIGNALS[self.received]
                # Not by print, because the handler may have interrupted another print.
                told = f"\n{name}: last.ckpt is written after this update; a second one ends at once.\n"
                with contextlib.suppress(OSError):  # Nobody reads it.
                    os.write(2, told.encode())
        elif number == signal.SIGINT and hasattr(sys, "ps1"):
            raise by_signal(KeyboardInterrupt())
        elif number == signal.SIGINT and first:
            raise by_signal(SystemExit(128 + number))
        else:
            self._end(number)

    def _end(self, number: int) -> None:
        """End this process, its workers, and those that Lightning launched, without a further line of Python."""
        if (launcher := self.trainer.strategy.launcher) is not None:
            launcher.kill(signal.SIGKILL)
        for worker in active_children():  # Forked workers ignore Ctrl-C, and would wait for tasks forever.
            worker.kill()
        with contextlib.suppress(RuntimeError, OSError):  # The handler interrupted a print, or nobody reads it.
            sys.stdout.flush()
        if os.isatty(1):
            os.write(1, b"\x1b[?25h\n")  # a progress bar has hidden the cursor
        os._exit(128 + number)


def _forget() -> None:
    """Reset the signal handlers in a forked process, such as a data loader's worker.

    SIGTERM ends the worker; Ctrl-C does not, because the parent's update needs its results.
    """
    if Termination.current is not None:
        Termination.current = None
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)


os.register_at_fork(after_in_child=_forget)
