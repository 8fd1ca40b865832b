"""Tables of methods by measures, in Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lightning_cgrpo.reporting.measures import Statistic


@dataclass(frozen=True)
class Column:
    """A table column."""

    title: str
    decimals: int = 3


@dataclass(frozen=True)
class Cell:
    """A statistic over seeds; None without a value.

    Args:
        bold: best of its column.
        marked: violates its threshold.
        note: in parentheses after the value.
    """

    value: Statistic | None
    bold: bool = False
    marked: bool = False
    note: str = ""

    def text(self, column: Column, seeds: int) -> str:
        if self.value is None:
            return "-"
        texts = [f"{self.value.mean:,.{column.decimals}f}"]
        if not math.isnan(self.value.std):
            texts.append(f"{self.value.std:,.{column.decimals}f}")
        notes = [self.note] if self.note else []
        if self.value.seeds < seeds:
            notes.append(f"{self.value.seeds}/{seeds}")
        return " ± ".join(texts) + (f" ({', '.join(notes)})" if notes else "")


@dataclass(frozen=True)
class Table:
    """A table.

    Args:
        rows: label, number of seeds, and a cell per column.
    """

    title: str
    caption: str
    columns: Sequence[Column]
    rows: Sequence[tuple[str, int, Sequence[Cell]]]


def markdown(table: Table) -> str:
    """A GitHub table, under its caption."""
    rows = []
    for label, seeds, cells in table.rows:
        texts = [plain(label), str(seeds)]
        for cell, column in zip(cells, table.columns, strict=True):
            text = plain(cell.text(column, seeds))
            texts.append((f"**{text}**" if cell.bold else text) + (" !" if cell.marked else ""))
        rows.append(texts)
    return grid(table.caption, ["method", "seeds", *(plain(column.title) for column in table.columns)], rows)


def grid(caption: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table of texts under a caption."""
    lines = [caption, "", _row(heads), "|---|" + "---:|" * (len(heads) - 1), *map(_row, rows)]
    return "\n".join(lines) + "\n"


def plain(text: str) -> str:
    """Escape text of runs: special characters of Markdown, and HTML."""
    for letter in "\\|*_`[]":
        text = text.replace(letter, f"\\{letter}")
    return " ".join(text.replace("&", "&amp;").replace("<", "&lt;").split())


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"
