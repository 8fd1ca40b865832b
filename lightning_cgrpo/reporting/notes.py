"""Notes for the reader of a report: faults and gaps of the runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from lightning_cgrpo.reporting.identical import identical_notes, same_numbers
from lightning_cgrpo.reporting.logs import EFFECTIVE_WEIGHTS
from lightning_cgrpo.reporting.runs import SKIPPED, MethodRuns, Run, progress, seeds_of


def notes_of(methods: Sequence[MethodRuns], last: float) -> list[str]:
    """Notes on the runs of a task, the gravest first; `last` is the share that final values are over."""
    notes = list(identical_notes(methods))
    kinds = (_collapsed, _several_starts, _unfinished, _begins, _faults)
    notes += [note for of in kinds for method in methods for note in of(method)]
    other = [m.label for m in methods if any(run.distributions and run.pooled != last for run in m.runs)]
    if other:
        notes.append(f"Distributions are over the part of training that they were saved for: {'; '.join(other)}.")
    return notes + _missing_notes(methods)


def _collapsed(method: MethodRuns) -> Iterator[str]:
    found = [f"from update {r.collapsed:,} on ({seeds_of([r])})" for r in method.runs if r.collapsed is not None]
    if found:
        yield f"Collapsed: {method.label}: {', '.join(found)}."


def _several_starts(method: MethodRuns) -> Iterator[str]:
    """All starts that aren't shown: equal numbers make them superfluous, other numbers mean that more than the
    configuration changed (code, data, machine), and only the reader can know whether that matters.
    """
    parts = []
    for run in method.runs:
        others = [_start(other, run) for other in method.others if other.seed == run.seed]
        if others:
            parts.append(f"{seeds_of([run])} is {run.folders[-1]} ({run.updates:,} updates), not {', '.join(others)}")
    if parts:
        rule = "A seed counts once, by the start that went furthest, the newest of equals"
        yield f"Several starts: {method.label}: {'; '.join(parts)}. {rule}."


def _start(other: Run, shown: Run) -> str:
    differs = ", other numbers" if same_numbers(other, shown) is False else ""
    return f"{other.folders[-1]} ({other.updates:,}{differs})"


def _unfinished(method: MethodRuns) -> Iterator[str]:
    runs = [run for run in method.runs if not run.finished]
    if runs:
        yield f"Unfinished: {method.label}: {progress(runs)} updates ({seeds_of(runs)})."


def _begins(method: MethodRuns) -> Iterator[str]:
    for run in method.runs:
        if run.begins:
            where = f"{method.label}, {seeds_of([run])}: begins at update {run.begins:,}"
            yield f"{where}; its earlier part is not among these, or of another method."


def _faults(method: MethodRuns) -> Iterator[str]:
    counts = Counter[str]()
    for run in method.runs:
        counts.update(run.faults)
    skipped = counts.pop(SKIPPED, 0)
    parts = [f"{name} was not finite in {count:,} logged updates" for name, count in counts.items()]
    parts += [f"{skipped:,} optimizer steps were skipped in logged updates"] if skipped else []
    if parts:
        yield f"Faults: {method.label}: {', '.join(parts)}."


def _missing_notes(methods: Sequence[MethodRuns]) -> list[str]:
    """Tags that runs should have logged, and did not."""
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
