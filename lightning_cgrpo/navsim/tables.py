"""Tables on the screen."""

from __future__ import annotations

from collections.abc import Mapping

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from lightning_cgrpo.navsim.dialects import same_dialect
from lightning_cgrpo.navsim.two_stage import Result, StageMeans

SHOWN = ("NC", "DAC", "DDC", "TLC", "EP", "HC", "EPDMS", "ADE@4s")


def scores_table(results: Mapping[str, Result]) -> Table:
    """Per driver, a row for each stage, and the EPDMS over both.

    Raises:
        UserError: results of several dialects.
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
