"""What the command shows on the screen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from lightning_cgrpo.navsim.aggregation import EXTENDED_COMFORT
from lightning_cgrpo.navsim.command.results import label
from lightning_cgrpo.output import print_table

if TYPE_CHECKING:
    from lightning_cgrpo.navsim.aggregation import TwoStageScores

COLUMNS = {
    "NC": "no_at_fault_collisions",
    "DAC": "drivable_area_compliance",
    "DDC": "driving_direction_compliance",
    "TLC": "traffic_light_compliance",
    "EP": "ego_progress",
    "TTC": "time_to_collision_within_bound",
    "LK": "lane_keeping",
    "HC": "history_comfort",
    "EC": EXTENDED_COMFORT,
    "EPDMS": "epdms",
}
MOST_LINES = 40
MOST_ERRORS = 10
"""That are shown; the file has all."""


def show(results: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """A table (of one scene its candidates, of several their means), and what was wrong with candidates.

    Args:
        results: rows by scene.
    """
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    rows = [row for group in results.values() for row in group]
    columns = {short: name for short, name in COLUMNS.items() if any(row[name] is not None for row in rows)}
    table = Table(box=SIMPLE, show_footer=True)
    if len(results) == 1:
        [stem] = results
        table.add_column(f"candidate of {escape(stem)}", "mean", overflow="fold", min_width=min(len(stem) + 13, 40))
        tags = [row["tag"] for row in rows]
        lines = [[label(tags, number), *_means([row], columns)] for number, row in enumerate(rows)]
    else:
        table.add_column("scene (means)", "all", overflow="fold", min_width=13)
        table.add_column("rows", str(len(rows)), justify="right")
        lines = [[stem, str(len(group)), *_means(group, columns)] for stem, group in results.items()]
    for short, mean in zip(columns, _means(rows, columns), strict=True):
        table.add_column(short, mean, justify="right", no_wrap=True)
    for line in lines[:MOST_LINES]:
        table.add_row(*map(escape, line))
    print_table(table)
    console = Console()
    if len(lines) > MOST_LINES:
        console.print(f"- {len(lines) - MOST_LINES} more lines are not shown.", markup=False, highlight=False)
    wrong = [
        f"{stem}, candidate {label([other['tag'] for other in group], number)}: {row['error']}"
        for stem, group in results.items()
        for number, row in enumerate(group)
        if row["error"] is not None
    ]
    for error in wrong[:MOST_ERRORS]:
        console.print(f"- {error}", markup=False, highlight=False)
    if len(wrong) > MOST_ERRORS:
        console.print(f"- {len(wrong) - MOST_ERRORS} more errors are in the file.", markup=False, highlight=False)


def show_two_stages(scores: Mapping[str, TwoStageScores]) -> None:
    """A table of means over groups, by candidate."""
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=SIMPLE)
    table.add_column("two stages of", overflow="fold")
    for head in ("stage one", "stage two", "combined"):
        table.add_column(head, justify="right")
    for name, of in list(scores.items())[:MOST_LINES]:
        table.add_row(escape(name), *(f"{float(value):.3f}" for value in (of.stage_one, of.stage_two, of.combined)))
    Console().print(table)


def _means(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> list[str]:
    texts = []
    for name in columns.values():
        values = [row[name] for row in rows if row[name] is not None]
        texts.append(f"{fmean(values):.3f}" if values else "-")
    return texts
