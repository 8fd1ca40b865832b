"""Tables of methods by measures, in Markdown and HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True)
class Table:
    """A table of texts under its caption."""

    title: str
    caption: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]


def markdown(table: Table) -> str:
    """A GitHub table, under its caption."""
    heads = [plain(head) for head in table.heads]
    rows = []
    for row in table.rows:
        rows.append([plain(text) for text in row])
    return grid(table.caption, heads, rows)


def html_table(table: Table) -> str:
    """A table of HTML, under its caption."""
    heads = "".join(f"<th>{escape(head)}</th>" for head in table.heads)
    lines = [f"<p>{escape(table.caption)}</p>", f"<table><tr>{heads}</tr>"]
    for row in table.rows:
        cells = "".join(f"<td>{escape(text)}</td>" for text in row)
        lines.append(f"<tr>{cells}</tr>")
    # A line breaks between parts of a name, and before the ± of a deviation.
    return "\n".join([*lines, "</table>"]).replace("_", "_<wbr>").replace("± ", "±&nbsp;")


def grid(caption: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table of texts under a caption."""
    # The first column is to the left, and the others to the right.
    alignment = "|---|" + "---:|" * (len(heads) - 1)
    lines = [caption, "", _markdown_row(heads), alignment]
    lines += [_markdown_row(row) for row in rows]
    return "\n".join(lines) + "\n"


def plain(text: str) -> str:
    """Escape text of runs: special characters of Markdown, and HTML."""
    for letter in "\\|*_`[]":
        text = text.replace(letter, f"\\{letter}")
    return " ".join(text.replace("&", "&amp;").replace("<", "&lt;").split())


def _markdown_row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"
