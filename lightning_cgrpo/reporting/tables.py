"""Tables of methods by measures, in Markdown and HTML."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

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
    rows = [
        [plain(label), seeds, *(f"**{plain(text)}**" if bold else plain(text) for text, bold in cells)]
        for label, seeds, cells in texts(table)
    ]
    return grid(table.caption, ["method", "seeds", *(plain(column.title) for column in table.columns)], rows)


def html_table(table: Table) -> str:
    """A table of HTML, under its caption."""
    heads = "".join(f"<th>{escape(head)}</th>" for head in ("method", "seeds", *(c.title for c in table.columns)))
    lines = [f"<p>{escape(table.caption)}</p>", f"<table><tr>{heads}</tr>"]
    for label, seeds, cells in texts(table):
        shown = "".join(f"<td>{f'<b>{escape(text)}</b>' if bold else escape(text)}</td>" for text, bold in cells)
        lines.append(f"<tr><td>{escape(label)}</td><td>{seeds}</td>{shown}</tr>")
    return "\n".join([*lines, "</table>"])


def texts(table: Table) -> Iterator[tuple[str, str, list[tuple[str, bool]]]]:
    """Label, seeds, and each cell's text and whether it is bold, by row."""
    for label, seeds, cells in table.rows:
        shown = [(c.text(column, seeds), c) for c, column in zip(cells, table.columns, strict=True)]
        yield label, str(seeds), [(text + (" !" if cell.marked else ""), cell.bold) for text, cell in shown]


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
