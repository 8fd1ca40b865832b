"""Tables of methods by measures, in Markdown and HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple


class Cell(NamedTuple):
    """A table's cell; bold marks the best of a column."""

    text: str
    bold: bool = False


@dataclass(frozen=True)
class Table:
    """A table under its caption."""

    title: str
    caption: str
    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]


def markdown(table: Table) -> str:
    """A GitHub table, under its caption."""
    rows = [[f"**{plain(text)}**" if bold else plain(text) for text, bold in row] for row in table.rows]
    return grid(table.caption, list(map(plain, table.heads)), rows)


def html_table(table: Table) -> str:
    """A table of HTML, under its caption."""
    lines = [f"<p>{escape(table.caption)}</p>", "<table><tr>"]
    lines[-1] += "".join(f"<th>{escape(head)}</th>" for head in table.heads) + "</tr>"
    for row in table.rows:
        cells = (f"<b>{escape(text)}</b>" if bold else escape(text) for text, bold in row)
        lines.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    # A line breaks between parts of a name, and before the ± of a deviation.
    return "\n".join([*lines, "</table>"]).replace("_", "_<wbr>").replace("± ", "±&nbsp;")


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
