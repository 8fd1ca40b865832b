"""The page that says what was read, with all tables and figures; and its short form for the screen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from lightning_cgrpo.reporting.collect import Collection
from lightning_cgrpo.reporting.logs import EFFECTIVE_WEIGHTS
from lightning_cgrpo.reporting.runs import MethodRuns, Run
from lightning_cgrpo.reporting.tables import Table, markdown

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
        lines.append(f"| {method.label} | {seeds} | {updates_text(method)} |")
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


def updates_text(method: MethodRuns) -> str:
    """Updates done, from the fewest to the most, and of how many where a run isn't finished."""
    done = sorted({run.updates for run in method.runs})
    text = f"{done[0]:,}" if len(done) == 1 else f"{done[0]:,} to {done[-1]:,}"
    asked = max((run.max_updates or 0 for run in method.runs if not run.finished), default=0)
    return f"{text} of {asked:,}" if asked else text


def missing_notes(methods: Sequence[MethodRuns]) -> list[str]:
    """What runs should have logged, and did not."""
    lacking: dict[str, list[str]] = {}
    for method in methods:
        counts = Counter(tag for run in method.runs for tag in _missing(run, method))
        for tag, count in counts.items():
            some = "" if count == len(method.runs) else f" ({count} of {len(method.runs)} seeds)"
            lacking.setdefault(tag, []).append(method.label + some)
    everywhere = [method.label for method in methods]
    return [
        f"{tag} was not logged by {'any run' if labels == everywhere else '; '.join(labels)}."
        for tag, labels in lacking.items()
    ]


def _missing(run: Run, method: MethodRuns) -> Iterator[str]:
    """Tags that follow from the objective, and the families of which there is nothing."""
    expected = ["reward/mean", *(f"rate/{name}" for name in method.constraints)]
    expected += [f"multiplier/{name}" for name in ("reward", *method.enforced)]
    yield from (tag for tag in expected if tag not in run.series)
    for family in ("effective_weight/", "groups/informative/"):
        if not any(tag.startswith(family) for tag in run.series):
            yield f"{family}*"
    if not run.distributions:
        yield f"{EFFECTIVE_WEIGHTS}* (histograms)"
