"""A study's progress: runs and updates done, and time left."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from lightning_cgrpo.studies.ledger import OUTPUT, progress
from lightning_cgrpo.studies.study import Run

MINUTE = 60.0


class Display:
    """Progress of a study: a bar on a terminal, otherwise a line every minute.

    Args:
        interval: seconds between lines without a terminal.
    """

    COLUMNS = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("updates"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    )

    def __init__(self, runs: Sequence[Run], console: Console | None = None, interval: float = MINUTE) -> None:
        self.runs, self.interval = runs, interval
        self.console = console or Console()
        self.before = {run.name: progress(run)[0] for run in runs}
        self.over: dict[str, bool] = {}
        self.started = self.printed = time.monotonic()
        self.progress = Progress(*self.COLUMNS, console=self.console, disable=not self.console.is_terminal)
        self.bar = self.progress.add_task("", left="")
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Display:
        self.progress.start()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        self.progress.stop()
        if not self.console.is_terminal and kind is None:
            self.show(self.describe())

    def end(self, run: Run, error: str | None) -> None:
        self.over[run.name] = error is None
        if error is not None:
            self.show(failure(run, error))

    def show(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def describe(self) -> str:
        done, asked, left = self.measure()
        updates = f"{done:,} of {asked:,} updates" if asked else f"{done:,} updates"
        return f"{self._runs()}, {updates}, {(time.monotonic() - self.started) / 60:.0f} min{left and f', {left}'}"

    def measure(self) -> tuple[int, int | None, str]:
        """Updates done, updates requested (None if unknown), and a text of the time left.

        Resumed runs count from their checkpoint, failed runs up to their last update.
        """
        states = {run.name: progress(run) for run in self.runs}
        known = [asked for _, asked in states.values() if asked]
        usual = max(known, default=None)
        done = sum(states[run.name][0] for run in self.runs)
        fresh = sum(max(states[run.name][0] - self.before[run.name], 0) for run in self.runs)
        if usual is None:
            return done, None, ""
        asked = sum(
            now if run.name in self.over else total or usual for run in self.runs for now, total in [states[run.name]]
        )
        remaining = max(asked - done, 0)
        if not fresh or not remaining:
            return done, asked, ""
        seconds = (time.monotonic() - self.started) * remaining / fresh
        return done, asked, f"{seconds / 60:.0f} min left"

    def _runs(self) -> str:
        return f"{sum(self.over.values())} of {len(self.runs)} runs"

    def _watch(self) -> None:
        while not self._ended.wait(1.0):
            done, asked, left = self.measure()
            self.progress.update(self.bar, completed=done, total=asked, description=self._runs(), left=left)
            now = time.monotonic()
            if not self.console.is_terminal and now - self.printed > self.interval:
                self.printed = now
                self.show(self.describe())


def failure(run: Run, error: str) -> str:
    """Describe a failed run in one line."""
    return f"{run.name} failed: {error} (all output: {run.folder / OUTPUT})"
