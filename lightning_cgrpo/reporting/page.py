"""The page of a report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from lightning_cgrpo.reporting.methods import MethodRuns
from lightning_cgrpo.reporting.tables import Table, grid, markdown, plain


def report_page(methods: Sequence[MethodRuns], tables: Sequence[Table], pictures: Sequence[Path]) -> str:
    """The runs that were read, all tables, and the names of the figures."""
    rows = []
    for method in methods:
        seeds = ", ".join("?" if run.seed is None else str(run.seed) for run in method.runs)
        rows.append([plain(method.label), seeds, method.progress])
    notes = [f"- {plain(note)}" for method in methods for note in notes_of(method)]
    parts = [grid("# Report\n\n## What was read", ["method", "seeds", "updates"], rows)]
    parts += ["\n".join(notes) + "\n"] if notes else []
    parts += [f"## {table.title}\n\n{markdown(table)}" for table in tables]
    names = ", ".join(f"`{picture.name}`" for picture in pictures)
    return "\n".join([*parts, f"Figures beside this page: {names or 'none'}.\n"])


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
