"""Tables on the screen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from statistics import fmean
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lightning_cgrpo.navsim.columns import SHORT
from lightning_cgrpo.navsim.command.scored_scene import label
from lightning_cgrpo.navsim.dialects import same_dialect
from lightning_cgrpo.navsim.tables import number, scores_table
from lightning_cgrpo.navsim.two_stage import Result
from lightning_cgrpo.output import print_table

MOST_LINES = 40
MOST_ERRORS = 10


def show(results: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
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
    notes += [
        f"{name}: mean {fmean(row['scores'][name] for row in rows):.4f} of {len(rows)} rows."
        for name in rows[0]["scores"]
    ]
    for note in notes:
        Console().print(f"- {note}", markup=False, highlight=False)


def show_two_stages(results: Mapping[str, Result]) -> None:
    """Print both stages by candidate."""
    print_table(scores_table(dict(islice(results.items(), MOST_LINES))))


def _means(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> list[str]:
    known = ([row[name] for row in rows if row[name] is not None] for name in columns.values())
    return [number(fmean(values) if values else None) for values in known]
