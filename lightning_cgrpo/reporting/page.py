"""The pages of a report: tables, and figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from lightning_cgrpo.reporting.methods import MethodRuns
from lightning_cgrpo.reporting.tables import Table, grid, markdown, plain

CAPTIONS = {
    "curves": "Learning curves: mean over seeds, band ± 1 standard deviation; thresholds dashed.",
    "distribution": "Effective weights over the groups in which a component varies, pooled over seeds and the last "
    "part of training; the multiplier dashed.",
    "sweep": "Fixed weights: final reward and rates over a weight.",
}


def report_page(methods: Sequence[MethodRuns], tables: Sequence[Table]) -> str:
    """The runs that were read, and all tables."""
    rows = []
    for method in methods:
        seeds = ", ".join("?" if run.seed is None else str(run.seed) for run in method.runs)
        rows.append([plain(method.label), seeds, method.progress])
    notes = [f"- {plain(note)}" for method in methods for note in notes_of(method)]
    parts = [grid("# Report\n\n## What was read", ["method", "seeds", "updates"], rows)]
    parts += ["\n".join(notes) + "\n"] if notes else []
    parts += [f"## {table.title}\n\n{markdown(table)}" for table in tables]
    return "\n".join([*parts, "Figures: `figures.md`, beside this page.\n"])


def figures_page(pictures: Sequence[Path]) -> str:
    """The figures with captions, on a page of their own: tables are committed, and figures redrawn."""
    lines = ["# Figures"]
    for picture in pictures:
        lines += ["", f"![{picture.stem}]({picture.name})", "", CAPTIONS[picture.stem.partition("_")[0]]]
    return "\n".join(lines) + "\n"


def notes_of(method: MethodRuns) -> Iterator[str]:
    """Runs that did not finish, collapses and faults."""
    for run in method.runs:
        what, summary = f"{method.label}, seed {run.seed}", run.summary
        if not run.finished:
            error = f": {summary['error']}" if summary.get("error") else ""
            yield f"{what}: {summary['status']} at {run.updates:,} updates{error}."
        if summary.get("collapsed") is not None:
            yield f"{what}: collapsed from update {summary['collapsed']:,.0f} on."
        for name, count in summary["faults"].items():
            kind = "optimizer steps were skipped" if name == "skipped_steps" else f"logged updates had faults of {name}"
            yield f"{what}: {count:,} {kind}."
