"""What the reader of a report should know about the runs in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from lightning_cgrpo.reporting.logs import EFFECTIVE_WEIGHTS
from lightning_cgrpo.reporting.runs import SKIPPED, MethodRuns, Run, progress


def run_notes(methods: Sequence[MethodRuns], last: float) -> list[str]:
    """What is unfinished, incomplete or not as it should be; `last` is the share that final values are over."""
    notes = [note for of in (_unfinished, _begins, _faults) for method in methods for note in of(method)]
    other = [m.label for m in methods if any(run.distributions and run.pooled != last for run in m.runs)]
    if other:
        notes.append(f"Distributions are over the part of training that they were saved for: {'; '.join(other)}.")
    return notes


def _unfinished(method: MethodRuns) -> Iterator[str]:
    runs = [run for run in method.runs if not run.finished]
    if runs:
        yield f"Unfinished: {method.label}: {progress(runs)} updates ({_seeds(runs)})."


def _begins(method: MethodRuns) -> Iterator[str]:
    for run in method.runs:
        if run.begins:
            start = f"begins at update {run.begins:,}; its earlier part is not among these"
            yield f"{method.label}, {_seeds([run])}: {start}."


def _faults(method: MethodRuns) -> Iterator[str]:
    counts = Counter[str]()
    for run in method.runs:
        counts.update(run.faults)
    skipped = counts.pop(SKIPPED, 0)
    parts = [f"{name} was not finite in {count:,} logged updates" for name, count in counts.items()]
    parts += [f"{skipped:,} optimizer steps were skipped in logged updates"] if skipped else []
    if parts:
        yield f"Faults: {method.label}: {', '.join(parts)}."


def _seeds(runs: Sequence[Run]) -> str:
    seeds = ", ".join("?" if run.seed is None else str(run.seed) for run in runs)
    return f"seed{'s' if len(runs) > 1 else ''} {seeds}"


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
