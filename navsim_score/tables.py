"""Tables on the screen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from rich import get_console
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len, set_cell_size
from rich.markup import escape
from rich.table import Table

from navsim_score.columns import SHORT
from navsim_score.dialects import same_dialect
from navsim_score.two_stage import Result, StageMeans

MOST_LINES = 40
MOST_ERRORS = 10
NUMBER_WIDTH = len(" 0.123")
NAME_WIDTH = 11
"""Of a driver's name beside the numbers of two stages; a longer name has several lines."""
SHOWN = ("NC", "DAC", "DDC", "TLC", "EP", "HC", "EPDMS", "ADE@4s")


def print_table(table: Table) -> None:
    """Print a table without truncated columns; a narrower terminal wraps the lines."""
    console = get_console()
    needed = console.measure(table, options=console.options.update(width=1000)).minimum
    if needed > console.width:
        table.width = needed  # a width given to `print` is limited to that of the terminal
    console.print(table, crop=False)


def scores_table(results: Mapping[str, Result]) -> Table:
    """Per driver, a row for each stage, and the EPDMS over both.

    Raises:
        InputError: results of several dialects.
    """
    dialect = same_dialect(result.dialect for result in results.values()) if results else "no scores"
    stages = [stage for result in results.values() for stage in (result.first, result.second) if stage is not None]
    shown = [name for name in SHOWN if any(stage.columns[name] is not None for stage in stages)]

    def cells(stage: StageMeans) -> list[str]:
        return [str(stage.scenes), f"{stage.malformed:.3f}", *(number(stage.columns[name]) for name in shown)]

    caption = "means over answers, malformed ones as 0; stage 2 is weighted by how near it starts to where plans end"
    table = Table(title=f"Driving: {dialect}", caption=caption, box=SIMPLE_HEAD, padding=0)
    table.title_justify = table.caption_justify = "left"
    table.add_column(overflow="fold", min_width=NAME_WIDTH, max_width=NAME_WIDTH)
    for head in ("", "scenes", "mal-\nformed", *shown):
        table.add_column(head.replace("@", "\n@"), justify="right", no_wrap=True)
    for name, result in results.items():
        table.add_row(escape(name), "S1", *cells(result.first))
        if result.second is not None:
            table.add_row("", "S2", *cells(result.second))
            both = (number(result.epdms) if column == "EPDMS" else "" for column in shown)
            table.add_row("", "both", str(result.scenes), "", *both)
    return table


def number(value: float | None) -> str:
    """Format with three digits, "-" where unknown."""
    return "-" if value is None else f"{value:.3f}"


def show_scores(results: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Print scores by scene and errors: a line per candidate of one scene, or a line of means per scene."""
    console = get_console()
    rows = [row for group in results.values() for row in group]
    table = _candidates(results) if len(results) == 1 else _scenes(results)
    for line in _score_lines(same_dialect(row["dialect"] for row in rows), table, console.width):
        # As it is, because a name must neither be cut nor read as markup.
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    for note in _notes(results, left_out=len(table.lines) - MOST_LINES):
        console.print(f"- {note}", markup=False, highlight=False)


class _Line(NamedTuple):
    name: str
    rows: Sequence[Mapping[str, Any]]  # whose means the line shows


class _Lines(NamedTuple):
    head: str  # of the names
    lines: Sequence[_Line]
    total: _Line
    counted: bool  # whether each line shows its number of rows


def _candidates(results: Mapping[str, Sequence[Mapping[str, Any]]]) -> _Lines:
    """A line per candidate of the only scene."""
    [(stem, rows)] = results.items()
    tags = [row["tag"] for row in rows]
    lines = [_Line(label(tags, index), [row]) for index, row in enumerate(rows)]
    return _Lines(f"candidate of {stem}", lines, _Line("mean", rows), counted=False)


def _scenes(results: Mapping[str, Sequence[Mapping[str, Any]]]) -> _Lines:
    """A line per scene."""
    lines = [_Line(stem, rows) for stem, rows in results.items()]
    every = [row for line in lines for row in line.rows]
    return _Lines("scene (means)", lines, _Line("all", every), counted=True)


def _score_lines(title: str, table: _Lines, width: int) -> Iterator[str]:
    """The table in `width` columns; a name too long to stand beside its numbers has a line of its own."""
    columns: dict[str, str] = {}
    for short, name in SHORT.items():
        if any(row.get(name) is not None for row in table.total.rows):
            columns[short] = name
    counts_width = max(len(f" {len(table.total.rows)}"), len(" rows")) if table.counted else 0
    numbers_width = counts_width + sum(max(len(short) + 1, NUMBER_WIDTH) for short in columns)
    shown = table.lines[:MOST_LINES]
    longest = max(cell_len(name) for name in (table.head, *(line.name for line in shown)))
    name_width = min(longest, max(width - numbers_width, len(table.total.name)))

    def beside(name: str, count: str, numbers: Sequence[str]) -> Iterator[str]:
        if cell_len(name) > name_width:
            yield name
            name = ""
        cells = [
            number.rjust(max(len(short) + 1, NUMBER_WIDTH)) for short, number in zip(columns, numbers, strict=True)
        ]
        yield set_cell_size(name, name_width) + count.rjust(counts_width) + "".join(cells)

    def numbers_of(line: _Line) -> Iterator[str]:
        count = str(len(line.rows)) if table.counted else ""
        return beside(line.name, count, [_mean(line.rows, name) for name in columns.values()])

    rule = "─" * (name_width + numbers_width)
    yield title
    yield from beside(table.head, "rows" if table.counted else "", list(columns))
    yield rule
    for line in shown:
        yield from numbers_of(line)
    yield rule
    yield from numbers_of(table.total)


def _notes(results: Mapping[str, Sequence[Mapping[str, Any]]], left_out: int) -> list[str]:
    """What the lines don't show: lines left out, errors of candidates, and the means of all dialects."""
    notes = [f"{left_out} more lines are not shown."] if left_out > 0 else []
    wrong = []
    for stem, rows in results.items():
        tags = [row["tag"] for row in rows]
        for index, row in enumerate(rows):
            if row["error"] is not None:
                wrong.append(f"{stem}, candidate {label(tags, index)}: {row['error']}")
    notes += wrong[:MOST_ERRORS]
    if len(wrong) > MOST_ERRORS:
        notes.append(f"{len(wrong) - MOST_ERRORS} more errors are in the file.")
    totals: dict[str, list[float]] = {}
    for rows in results.values():
        for row in rows:
            for name, value in row["scores"].items():
                known = totals.setdefault(name, [])
                if value is not None:
                    known.append(value)
    for name, values in totals.items():
        notes.append(f"{name}: mean {fmean(values) if values else 0.0:.4f} of {len(values)} rows.")
    return notes


def _mean(rows: Sequence[Mapping[str, Any]], name: str) -> str:
    values = [row[name] for row in rows if row[name] is not None]
    return number(fmean(values) if values else None)


def label(tags: Sequence[str | None], row: int) -> str:
    """Return a candidate's tag if unique, else its row as text."""
    tag = tags[row]
    return tag if tag and tags.count(tag) == 1 else str(row)
