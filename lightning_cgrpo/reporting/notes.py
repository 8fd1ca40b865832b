"""Notes on runs' faults, gaps and equal numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from lightning_cgrpo.reporting.logs import EFFECTIVE_WEIGHTS
from lightning_cgrpo.reporting.runs import SKIPPED, MethodRuns, Run, progress, seeds_of
from lightning_cgrpo.reporting.series import Series

MEASURED = ("reward/", "rate/", "mean/")
"""Series that follow from sampled answers."""
CHANCE = 30.0
"""Below this many bits, equal numbers may be chance."""


def notes_of(methods: Sequence[MethodRuns], last: float) -> list[str]:
    """Notes on a task's methods, the gravest first; `last` as in `collect`."""
    notes = list(_identical(methods))
    kinds = (_collapsed, _several_starts, _unfinished, _begins, _faults)
    notes += [note for of in kinds for method in methods for note in of(method)]
    other = [m.label for m in methods if any(run.distributions and run.pooled != last for run in m.runs)]
    if other:
        notes.append(f"Distributions are over the part of training that they were saved for: {'; '.join(other)}.")
    return notes + _missing_notes(methods)


# ---------------------------------------------------------------------- equal numbers


def _identical(methods: Sequence[MethodRuns]) -> Iterator[str]:
    sets: list[list[tuple[MethodRuns, Run]]] = []
    for method in methods:
        for run in method.runs:
            for known in sets:
                first = known[0][1]
                if _same_numbers(first, run) and _worth(first, run) >= CHANCE:
                    known.append((method, run))
                    break
            else:
                sets.append([(method, run)])
    for found in sets:
        if len(found) > 1:
            labels = dict.fromkeys(method.label for method, _ in found)
            names = [f"{label}, {seeds_of([run for m, run in found if m.label == label])}" for label in labels]
            updates = min(run.updates for _, run in found)
            yield (
                f"Identical: {'; '.join(names)}: all series are equal, number for number, over {updates:,} updates. "
                "They are one training, counted several times."
            )


def _same_numbers(one: Run, other: Run) -> bool | None:
    """True if the series of both runs are equal up to the common end; None if not comparable."""
    shared = [tag for tag in one.series if tag in other.series]
    if one.width != other.width or not shared:
        return None
    end = _end(one, other)
    return all(_equal(one.series[tag].between(-np.inf, end), other.series[tag].between(-np.inf, end)) for tag in shared)


def _equal(one: Series, other: Series) -> bool:
    return np.array_equal(one.steps, other.steps) and np.array_equal(one.values, other.values)


def _worth(run: Run, other: Run) -> float:
    """Bits of information in the measured series of both runs, up to their common end.

    Rare values count more, constant series nothing.
    """
    bits = 0.0
    for tag in (tag for tag in run.series if tag.startswith(MEASURED) and tag in other.series):
        values = run.series[tag].between(-np.inf, _end(run, other)).values
        _, counts = np.unique(values, return_counts=True)
        bits += float((counts * np.log2(len(values) / counts)).sum())
    return bits


def _end(one: Run, other: Run) -> float:
    if one.updates == other.updates:
        return np.inf
    # Steps are the middles of bins.
    return min(one.updates, other.updates) - max(one.width, other.width) / 2 + 1e-9


# ---------------------------------------------------------------------- faults and gaps


def _collapsed(method: MethodRuns) -> Iterator[str]:
    found = [f"from update {r.collapsed:,} on ({seeds_of([r])})" for r in method.runs if r.collapsed is not None]
    if found:
        yield f"Collapsed: {method.label}: {', '.join(found)}."


def _several_starts(method: MethodRuns) -> Iterator[str]:
    """A note on starts that aren't shown.

    Different numbers mean changed code, data or machine.
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
    differs = ", other numbers" if _same_numbers(other, shown) is False else ""
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
    expected = ["reward/mean", *(c.tag(name) for name, c in method.constraints.items())]
    expected += [f"multiplier/{name}" for name in ("reward", *method.enforced)]
    yield from (tag for tag in expected if tag not in run.series)
    for family in ("effective_weight/", "groups/informative/"):
        if not any(tag.startswith(family) for tag in run.series):
            yield f"{family}*"
    if not run.distributions:
        yield f"{EFFECTIVE_WEIGHTS}* (histograms)"
