"""Tables in Markdown, CSV and LaTeX from the same cells."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from lightning_cgrpo.reporting.summary import Statistic


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


@dataclass(frozen=True)
class Table:
    """A table of methods by measures.

    Args:
        rows: label, number of seeds, and a cell per column.
    """

    name: str
    caption: str
    columns: Sequence[Column]
    rows: Sequence[tuple[str, int, Sequence[Cell]]] = field(default_factory=list)


def markdown(table: Table) -> str:
    """A GitHub table, under its caption."""
    heads = ["method", "seeds", *(column.title for column in table.columns)]
    lines = [table.caption, "", _row(plain(head) for head in heads), "|---|" + "---:|" * (len(heads) - 1)]
    lines += [_row(texts) for texts in _rows(table, plain, "**{}**", " !")]
    return "\n".join(lines) + "\n"


def comma_separated(table: Table) -> str:
    """CSV of means, standard deviations and numbers of seeds, with six digits."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    columns = range(len(table.columns))
    marks = [any(cells[n].marked for _, _, cells in table.rows) for n in columns]
    notes = [any(cells[n].note for _, _, cells in table.rows) for n in columns]
    heads = ["method", "seeds"]
    for column, marked, noted in zip(table.columns, marks, notes, strict=True):
        parts = ["", " std", " n", *([" violated"] if marked else []), *([" note"] if noted else [])]
        heads += [column.title + part for part in parts]
    writer.writerow(heads)
    for label, seeds, cells in table.rows:
        row: list[str] = [label, str(seeds)]
        for cell, marked, noted in zip(cells, marks, notes, strict=True):
            value = cell.value
            row += ["", "", "0"] if value is None else [f"{value.mean:.6g}", _digits(value.std), str(value.seeds)]
            row += [str(int(cell.marked))] if marked else []
            row += [cell.note] if noted else []
        writer.writerow(row)
    return out.getvalue()


def latex(table: Table) -> str:
    """A LaTeX float with a booktabs table, at most as wide as the line."""
    heads = ["method", "seeds", *(column.title for column in table.columns)]
    lines = [
        "% \\usepackage{booktabs, graphicx}",
        "\\begin{table}",
        "\\centering",
        f"\\caption{{{escaped(table.caption)}}}",
        f"\\label{{tab:{table.name}}}",
        "\\resizebox{\\ifdim\\width>\\linewidth\\linewidth\\else\\width\\fi}{!}{%",
        f"\\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}",
        "\\toprule",
        " & ".join(escaped(head) for head in heads) + " \\\\",
        "\\midrule",
    ]
    lines += [" & ".join(texts) + " \\\\" for texts in _rows(table, escaped, "\\textbf{{{}}}", "$^{!}$")]
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}}", "\\end{table}"]) + "\n"


ESCAPES = {
    "\\": "\\textbackslash{}",
    "≤": "$\\le$",
    "≥": "$\\ge$",
    "±": "$\\pm$",
    "<": "$<$",
    ">": "$>$",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
}


def escaped(text: str) -> str:
    """Escape LaTeX's special characters."""
    return "".join(ESCAPES.get(letter, letter) for letter in text)


def _rows(table: Table, escape: Callable[[str], str], bold: str, mark: str) -> Iterator[list[str]]:
    for label, seeds, cells in table.rows:
        texts = [escape(label), str(seeds)]
        for cell, column in zip(cells, table.columns, strict=True):
            text = escape(_text(cell, column, seeds))
            texts.append((bold.format(text) if cell.bold else text) + mark * cell.marked)
        yield texts


def _text(cell: Cell, column: Column, seeds: int) -> str:
    value = cell.value
    if value is None:
        return "-"
    texts = [f"{value.mean:,.{column.decimals}f}"]
    if not math.isnan(value.std):
        texts.append(f"{value.std:,.{column.decimals}f}")
    notes = [cell.note] if cell.note else []
    if value.seeds < seeds:
        notes.append(f"{value.seeds}/{seeds}")
    return " ± ".join(texts) + (f" ({', '.join(notes)})" if notes else "")


def _digits(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.6g}"


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def plain(text: str) -> str:
    """Escape Markdown's special characters."""
    return text.replace("|", "\\|").replace("*", "\\*").replace("_", "\\_")
