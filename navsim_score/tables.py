"""Tables on the screen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from rich import get_console
from rich.box import SIMPLE, SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from navsim_score.columns import SHORT
from navsim_score.dialects import same_dialect
from navsim_score.two_stage import Result, StageMeans

MOST_LINES = 40
MOST_ERRORS = 10
SHOWN = ("NC", "DAC", "DDC", "TLC", "EP", "HC", "EPDMS", "ADE@4s")


def print_table(table: Table) -> None:
    """Print a table without truncated columns; a narrower terminal wraps the lines."""
    console = get_console()
    needed = console.measure(table, options=console.options.update(width=1000)).minimum
    console.print(table, width=max(console.width, needed), crop=False)


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
    table.add_column(no_wrap=True)
    for head in ("", "scenes", "mal-\nformed", *shown):
        table.add_column(head.replace("@", "\n@"), justify="right", no_wrap=True)
    for name, result in results.items():
        table.add_row(escape(name).replace(" ", "\n"), "S1", *cells(result.first))
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
    rows = [row for group in results.values() for row in group]
    columns = {short: name for short, name in SHORT.items() if any(row.get(name) is not None for row in rows)}
    table = Table(box=SIMPLE, show_footer=True, title=same_dialect(row["dialect"] for row in rows))
    if len(results) == 1:
        [stem] = results
        table.add_column(f"candidate of {escape(stem)}", "mean", overflow="fold", min_width=min(len(stem) + 13, 40))
        tags = [row["tag"] for row in rows]
        lines = [[label(tags, index), *_means([row], columns)] for index, row in enumerate(rows)]
    else:
        table.add_column("scene (means)", "all", overflow="fold", min_width=13)
        table.add_column("rows", str(len(rows)), justify="right")
        lines = [[stem, str(len(group)), *_means(group, columns)] for stem, group in results.items()]
    for short, mean in zip(columns, _means(rows, columns), strict=True):
        table.add_column(short, mean, justify="right", no_wrap=True)
    for line in lines[:MOST_LINES]:
        table.add_row(*map(escape, line))
    print_table(table)
    wrong = [
        f"{stem}, candidate {label([other['tag'] for other in group], index)}: {row['error']}"
        for stem, group in results.items()
        for index, row in enumerate(group)
        if row["error"] is not None
    ]
    notes = [f"{len(lines) - MOST_LINES} more lines are not shown."] if len(lines) > MOST_LINES else []
    notes += wrong[:MOST_ERRORS]
    if len(wrong) > MOST_ERRORS:
        notes.append(f"{len(wrong) - MOST_ERRORS} more errors are in the file.")
    for name in rows[0]["scores"]:
        values = [row["scores"][name] for row in rows if row["scores"][name] is not None]
        notes.append(f"{name}: mean {fmean(values) if values else 0.0:.4f} of {len(values)} rows.")
    for note in notes:
        Console().print(f"- {note}", markup=False, highlight=False)


def _means(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> list[str]:
    values = ([row[name] for row in rows if row[name] is not None] for name in columns.values())
    return [number(fmean(column) if column else None) for column in values]


def label(tags: Sequence[str | None], row: int) -> str:
    """Return a candidate's tag if unique, else its row as text."""
    tag = tags[row]
    return tag if tag and tags.count(tag) == 1 else str(row)
