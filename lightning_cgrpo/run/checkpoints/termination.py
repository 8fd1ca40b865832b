"""Ctrl-C, SIGTERM and SIGHUP: a signal is noted, and the run ends after its update."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
from types import FrameType

from lightning.pytorch import Trainer
from lightning.pytorch.trainer.connectors.signal_connector import _SignalConnector
from lightning.pytorch.utilities import rank_zero_only

from lightning_cgrpo.core.distributed import gather_counts
from lightning_cgrpo.core.user_code import by_signal

SIGNALS = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM", signal.SIGHUP: "SIGHUP"}


class Termination(_SignalConnector):
    """Notes signals while updates run, because Lightning's own handler leaves no checkpoint.

    `Checkpoints` asks `agreed` after each update and each batch of a validation. A second Ctrl-C raises
    KeyboardInterrupt, as Python does. Before the first update and in evaluations, there is nothing to save: Ctrl-C
    raises KeyboardInterrupt, and another signal raises SystemExit with status 128 + the signal's number. Code that
    never returns, or catches all exceptions, needs SIGKILL.
    """

    def __init__(self, trainer: Trainer) -> None:
        super().__init__(trainer)
        self.updating = False
        """True once updates have begun."""
        self.received = 0
        """The number of the signal that came last; 0 without."""

    def register_signal_handlers(self) -> None:
        super().register_signal_handlers()
        self.updating = False
        self.received = 0
        for number in SIGNALS:
            # nohup ignores SIGHUP, and shells ignore SIGINT for background jobs.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._register_signal(number, self._receive)

    def agreed(self) -> int:
        """The number of a signal that any process received, the largest of several; 0 without. Collective."""
        return max(gather_counts(self.received, self.trainer.strategy.root_device))

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            _leave_closed_terminal()
        second_interrupt = number == signal.SIGINT == self.received
        if self.updating and not second_interrupt:
            self.received = number
            self._announce_end(number)
        elif number == signal.SIGINT:
            raise by_signal(KeyboardInterrupt())
        else:
            raise by_signal(SystemExit(128 + number))

    @staticmethod
    def _announce_end(number: int) -> None:
        if rank_zero_only.rank != 0:  # type: ignore[attr-defined] # set by Lightning
            return
        text = f"\n{SIGNALS[signal.Signals(number)]}: the run ends after this update, with last.ckpt"
        if number == signal.SIGINT:
            text += "; a second Ctrl-C ends it now"
        text += ".\n"
        # Not by print, because the handler may have interrupted another print. Perhaps nobody reads it.
        with contextlib.suppress(OSError):
            os.write(2, text.encode())


def _leave_closed_terminal() -> None:
    """Send a terminal's output nowhere, because every print to a terminal that has closed fails."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        # Not isatty, which is False for a closed terminal.
        with contextlib.suppress(OSError):
            if stat.S_ISCHR(os.fstat(stream).st_mode):
                os.dup2(nowhere, stream)
    os.close(nowhere)


def _leave_signals_to_the_run() -> None:
    """Reset the signal handlers in a forked process, such as a worker of a data loader or of a reward function.

    SIGTERM ends the worker. Ctrl-C and SIGHUP, which a terminal sends to all processes, do not, because the run's
    update needs the worker's results.
    """
    if isinstance(getattr(signal.getsignal(signal.SIGTERM), "__self__", None), Termination):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


os.register_at_fork(after_in_child=_leave_signals_to_the_run)
