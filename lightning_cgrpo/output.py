"""Tables on the screen, and files written completely or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


def print_table(table: Table) -> None:
    """Print a table without truncated columns; a narrower terminal wraps the lines."""
    from rich.console import Console

    console = Console()
    needed = console.measure(table, options=console.options.update(width=1000)).minimum
    Console(width=max(console.width, needed)).print(table)


def write_whole(path: Path, text: str) -> None:
    """Write a temporary file and rename it to `path`, so that readers never see half a file."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_text(text, encoding="utf-8")
    os.replace(unfinished, path)
