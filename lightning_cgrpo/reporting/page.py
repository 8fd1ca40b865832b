"""The report page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lightning_cgrpo.reporting.collect import TaskRuns
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


@dataclass(frozen=True)
class Section:
    """A task's part of a report; its file names begin with `prefix`."""

    task: TaskRuns
    prefix: str
    tables: Sequence[Table]
    pictures: Sequence[Path]


def page(sections: Sequence[Section], notes: Sequence[str]) -> str:
    """The report in Markdown; `notes` concern the sources."""
    if len(sections) == 1:
        return "\n".join(["# Report", *_section(sections[0], "##", notes)]) + "\n"
    lines = ["# Report", *_listed(notes)]
    for section in sections:
        lines += ["", f"## {plain(section.task.name)}", *_section(section, "###")]
    return "\n".join(lines) + "\n"


def _section(section: Section, level: str, notes: Sequence[str] = ()) -> Iterator[str]:
    yield from ("", f"{level} What was read", "")
    yield from ("| method | seeds | updates |", "|---|---|---|")
    for method in section.task.methods:
        seeds = ", ".join("?" if run.seed is None else str(run.seed) for run in method.runs)
        yield f"| {plain(method.label)} | {seeds} | {progress(method.runs)} |"
    yield from _listed([*section.task.notes, *notes])
    for table in section.tables:
        yield from ("", f"{level} {TITLES[table.name]}", "", markdown(table).rstrip())
    yield from ("", "Figures: `figures.md`, beside this page.")


def figures_page(sections: Sequence[Section]) -> str:
    """The figures with captions, on a page of their own: tables are committed, and figures redrawn."""
    lines = ["# Figures"]
    for section in sections:
        lines += ["", f"## {plain(section.task.name)}"] if len(sections) > 1 else []
        for picture in section.pictures:
            name = picture.stem.removeprefix(section.prefix)
            lines += ["", f"![{picture.stem}]({picture.name})", "", CAPTIONS.get(name.partition("_")[0], name)]
    return "\n".join(lines) + "\n"


def _listed(notes: Sequence[str]) -> list[str]:
    return ["", *(f"- {note}" for note in notes)] if notes else []
