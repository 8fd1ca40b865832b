"""The page that says what was read, with all tables and figures; and its short form for the screen."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lightning_cgrpo.reporting.collect import Collection
from lightning_cgrpo.reporting.runs import progress
from lightning_cgrpo.reporting.tables import Table, markdown, plain

CAPTIONS = {
    "curves": "Learning curves: mean over seeds, band ± 1 standard deviation; thresholds dashed.",
    "distribution": "Effective weights over the groups in which a component varies, pooled over seeds and the last "
    "part of training; the multiplier dashed.",
    "phase": "Violation against multiplier, a path per seed.",
    "informative": "Share of groups in which a component varies: the others teach nothing about it.",
    "sweep": "Fixed weights: final reward and rates over a weight.",
}


TITLES = {"final": "Final values", "control": "Control", "test": "Test"}


def page(collection: Collection, tables: Sequence[Table], pictures: Sequence[Path], missing: Sequence[str]) -> str:
    """The report in Markdown; pictures lie beside it."""
    lines = ["# Report", "", "## What was read", ""]
    lines += ["| method | seeds | updates |", "|---|---|---|"]
    for method in collection.methods:
        seeds = ", ".join("?" if run.seed is None else str(run.seed) for run in method.runs)
        lines.append(f"| {plain(method.label)} | {seeds} | {progress(method.runs)} |")
    notes = [*collection.notes, *missing]
    if notes:
        lines += ["", *(f"- {note}" for note in notes)]
    for table in tables:
        lines += ["", f"## {TITLES[table.name]}", "", markdown(table).rstrip()]
    lines += ["", "## Figures"]
    for picture in pictures:
        caption = CAPTIONS.get(picture.stem.partition("_")[0], picture.stem)
        lines += ["", f"![{picture.stem}]({picture.name})", "", f"{caption} [PDF]({picture.stem}.pdf)"]
    return "\n".join(lines) + "\n"
