"""Tables and messages on the screen, and files written completely or not at all."""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
import textwrap
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

SUMMARY = "summary.json"
"""A run's summary in its folder."""
SUMMARY_FORMAT = "lightning_cgrpo run 2"

ADVERTISED = r"Tip:|PU available: False, us|^Seed set to|`Trainer.fit` stopped|checkpoint (path )?at .*/\.[^/]*$"
"""Messages of Lightning that say nothing about the run; the last is of a checkpoint by its hidden second name."""


def print_table(table: Table) -> None:
    """Print a table without truncated columns or words; a narrower terminal wraps the lines."""
    from rich import get_console
    from rich.measure import Measurement

    console = get_console()  # the console of Lightning's bar, which another console would overwrite
    # A column is as wide as its longest word, because rich would cut words of the columns that wrap.
    for column in table.columns:
        cells = [column.header, *column.cells]
        widths = [Measurement.get(console, console.options, cell).minimum for cell in cells]
        column.min_width = max(column.min_width or 0, *widths)
    needed_width = console.measure(table, options=console.options.update(width=1000)).minimum
    if needed_width > console.width:
        table.width = needed_width  # a width given to `print` is limited to that of the terminal
    console.print(table, crop=False)


@contextmanager
def unfinished(path: Path) -> Iterator[Path]:
    """A path beside `path`, renamed to `path` at the end, so that readers never see half of a file."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    yield beside
    os.replace(beside, path)


def write_whole(path: Path, text: str) -> None:
    """Write a text by `unfinished`."""
    with unfinished(path) as file:
        file.write_text(text, encoding="utf-8")


def quiet_lightning() -> None:
    """Silence Lightning's advertisements, and warnings about intended settings.

    Messages come without paths, in lines of the terminal's width.
    """
    for message in (
        "Using ModelCheckpoint with manual optimization",  # Resuming needs a checkpoint after the update.
        "The '.*_dataloader' does not have many workers",
        "Be aware that when using `ckpt_path`, callbacks",  # The manifest tells what differs.
        "You're using the WeightAveraging callback",  # Shards are refused; evaluations read the average.
    ):
        warnings.filterwarnings("ignore", message=message)
    warnings.formatwarning = lambda message, *_, **__: wrap_lines(f"Warning: {message}\n")
    for name in ("lightning.pytorch", "lightning.fabric"):
        for handler in logging.getLogger(name).handlers:
            if type(handler) is logging.StreamHandler:  # not a subclass, which keeps what it gets
                handler.setStream(_Screen())
                handler.addFilter(_says_something)


def wrap_lines(text: str) -> str:
    """A message in lines as wide as the terminal, or of 80 columns in a file; words, such as paths, stay whole."""
    width = shutil.get_terminal_size().columns
    return "".join(_wrap_line(line, width) for line in text.splitlines(keepends=True))


def _wrap_line(line: str, width: int) -> str:
    if len(line.rstrip()) <= width:
        return line
    end = "\n" if line.endswith("\n") else ""
    return textwrap.fill(line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False) + end


def _says_something(record: logging.LogRecord) -> bool:
    """True for a message about the run."""
    return not re.search(ADVERTISED, record.getMessage())


class _Screen:
    """Whatever is standard error now, because the live progress bar replaces it."""

    def write(self, text: str) -> None:
        sys.stderr.write(wrap_lines(text))

    def flush(self) -> None:
        sys.stderr.flush()
