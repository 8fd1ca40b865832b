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
    known: set[str] = set()  # columns that some stage knows
    for result in results.values():
        for stage in (result.first, result.second):
            if stage is not None:
                known.update(name for name, value in stage.columns.items() if value is not None)
    shown = [name for name in SHOWN if name in known]

    def line(stage: str, cells: Sequence[str]) -> str:
        text = stage.ljust(STAGE_WIDTH)
        for name, cell in zip(shown, cells, strict=True):
            text += cell.rjust(max(len(name) + 1, NUMBER_WIDTH))
        return text

    head = line("", shown)
    title = same_dialect(result.dialect for result in results.values()) if results else "no scores"
    yield f"Driving: {title}"
    yield head
    yield "─" * len(head)
    for name, result in results.items():
        counts = f"{result.first.scenes:,} scenes"
        malformed = format_number(result.first.malformed)
        if result.second is not None:
            counts += f", {result.second.scenes:,} follow-ups of {result.scenes:,}"
            malformed += f", {format_number(result.second.malformed)}"
        yield f"{name}: {counts}; malformed {malformed}"
        yield line("S1", [format_number(result.first.columns[column]) for column in shown])
        if result.second is not None:
            yield line("S2", [format_number(result.second.columns[column]) for column in shown])
            both = {"EPDMS": format_number(result.epdms)}
            yield line("both", [both.get(column, "") for column in shown])
    yield "Means over answers; malformed answers count as 0."
    if any(result.second for result in results.values()):
        yield "S2 weighs follow-ups by how near they start to where plans end."


def format_number(value: float | None) -> str:
    """Format with three digits, "-" where unknown."""
    if value is None:
        return "-"
    return f"{value:.3f}"


def show_scores(results: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Print scores by scene and errors: a line per candidate of one scene, or a line of means per scene."""
    console = get_console()
    table = _lines_by_candidate(results) if len(results) == 1 else _lines_by_scene(results)
    title = same_dialect(row["dialect"] for row in table.total.rows)
    for line in _score_lines(title, table, console.width):
        # As it is, because a name must neither be cut nor read as markup.
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    for note in _notes_below(results, left_out=len(table.lines) - MOST_LINES):
        console.print(f"- {note}", markup=False, highlight=False)


class _Line(NamedTuple):
    name: str
    rows: Sequence[Mapping[str, Any]]  # whose means the line shows


class _Lines(NamedTuple):
    head: str  # of the names
    lines: Sequence[_Line]
    total: _Line
    counted: bool  # whether each line shows its number of rows


def _lines_by_candidate(results: Mapping[str, Sequence[Mapping[str, Any]]]) -> _Lines:
    """A line per candidate of the only scene."""
    [(stem, rows)] = results.items()
    tags = [row["tag"] for row in rows]
    lines = [_Line(label(tags, index), [row]) for index, row in enumerate(rows)]
    return _Lines(f"candidate of {stem}", lines, _Line("mean", rows), counted=False)


def _lines_by_scene(results: Mapping[str, Sequence[Mapping[str, Any]]]) -> _Lines:
    """A line per scene."""
    lines = []
    all_rows: list[Mapping[str, Any]] = []
    for stem, rows in results.items():
        lines.append(_Line(stem, rows))
        all_rows += rows
    return _Lines("scene (means)", lines, _Line("all", all_rows), counted=True)


def _score_lines(title: str, table: _Lines, width: int) -> Iterator[str]:
    """The table in `width` columns; a name too long to stand beside its numbers has a line of its own."""
    columns: dict[str, str] = {}
    for short, name in SHORT.items():
        if any(row.get(name) is not None for row in table.total.rows):
            columns[short] = name
    # The numbers have their width; the names get the rest.
    counts_width = 0
    if table.counted:
        counts_width = max(len(f" {len(table.total.rows)}"), len(" rows"))
    number_widths = [max(len(short) + 1, NUMBER_WIDTH) for short in columns]
    numbers_width = counts_width + sum(number_widths)
    shown = table.lines[:MOST_LINES]
    names = [table.head]
    names += [line.name for line in shown]
    longest = max(cell_len(name) for name in names)
    name_width = min(longest, max(width - numbers_width, len(table.total.name)))

    def name_and_cells(name: str, count: str, cells: Sequence[str]) -> Iterator[str]:
        if cell_len(name) > name_width:
            yield name
            name = ""
        text = set_cell_size(name, name_width) + count.rjust(counts_width)
        for cell, cell_width in zip(cells, number_widths, strict=True):
            text += cell.rjust(cell_width)
        yield text

    def name_and_means(line: _Line) -> Iterator[str]:
        count = str(len(line.rows)) if table.counted else ""
        return name_and_cells(line.name, count, [_mean_text(line.rows, name) for name in columns.values()])

    rule = "─" * (name_width + numbers_width)
    count_head = "rows" if table.counted else ""
    yield title
    yield from name_and_cells(table.head, count_head, list(columns))
    yield rule
    for line in shown:
        yield from name_and_means(line)
    yield rule
    yield from name_and_means(table.total)


def _notes_below(results: Mapping[str, Sequence[Mapping[str, Any]]], left_out: int) -> list[str]:
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
        mean = fmean(values) if values else 0.0
        notes.append(f"{name}: mean {mean:.4f} of {len(values)} rows.")
    return notes


def _mean_text(rows: Sequence[Mapping[str, Any]], name: str) -> str:
    values = [row[name] for row in rows if row[name] is not None]
    mean = fmean(values) if values else None
    return format_number(mean)


def label(tags: Sequence[str | None], row: int) -> str:
    """Return a candidate's tag if unique, else its row as text."""
    tag = tags[row]
    if tag and tags.count(tag) == 1:
        return tag
    return str(row)
