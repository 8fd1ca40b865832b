"""Tables on the screen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from rich import get_console
from rich.cells import cell_len, set_cell_size

from navsim_score.columns import SHORT
from navsim_score.dialects import same_dialect
from navsim_score.two_stage import Result

MOST_LINES = 40
MOST_ERRORS = 10
NUMBER_WIDTH = len(" 0.123")
STAGE_WIDTH = len("both")
SHOWN = ("NC", "DAC", "DDC", "TLC", "EP", "TTC", "LK", "HC", "EC", "EPDMS", "ADE@4s")


def show_stages(results: Mapping[str, Result]) -> None:
    """Print per driver a line with its name, a line for each stage, and the EPDMS over both.

    Raises:
        InputError: results of several dialects.
    """
    console = get_console()
    for line in _stage_lines(results):
        # As it is, because a name must neither be cut nor read as markup.
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _stage_lines(results: Mapping[str, Result]) -> Iterator[str]:
    stages = [stage for result in results.values() for stage in (result.first, result.second) if stage is not None]
    shown = [name for name in SHOWN if any(stage.columns[name] is not None for stage in stages)]

    def line(stage: str, cells: Sequence[str]) -> str:
        widths = [max(len(name) + 1, NUMBER_WIDTH) for name in shown]
        return stage.ljust(STAGE_WIDTH) + "".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))

    head = line("", shown)
    yield f"Driving: {same_dialect(result.dialect for result in results.values()) if results else 'no scores'}"
    yield head
    yield "─" * len(head)
    for name, result in results.items():
        counts, malformed = f"{result.first.scenes:,} scenes", number(result.first.malformed)
        if result.second is not None:
            counts += f", {result.second.scenes:,} follow-ups of {result.scenes:,}"
            malformed += f", {number(result.second.malformed)}"
        yield f"{name}: {counts}; malformed {malformed}"
        yield line("S1", [number(result.first.columns[column]) for column in shown])
        if result.second is not None:
            yield line("S2", [number(result.second.columns[column]) for column in shown])
            yield line("both", [number(result.epdms) if column == "EPDMS" else "" for column in shown])
    yield "Means over answers; malformed answers count as 0."
    if any(result.second for result in results.values()):
        yield "S2 weighs follow-ups by how near they start to where plans end."


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
