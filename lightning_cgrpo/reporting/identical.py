"""Compare the logged numbers of runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from lightning_cgrpo.reporting.runs import MethodRuns, Run, seeds_of
from lightning_cgrpo.reporting.series import Series

MEASURED = ("reward/", "rate/")
"""Families of series that follow from sampled answers."""
CHANCE = 30.0
"""Bits that equal numbers must be worth: below, chance may have made them equal."""


def same_numbers(one: Run, other: Run) -> bool | None:
    """Whether two runs logged equal numbers as far as both go; none if their bins can't be compared."""
    shared = [tag for tag in one.series if tag in other.series]
    if one.width != other.width or not shared:
        return None
    end = _end(one, other)
    return all(_equal(one.series[tag].between(-np.inf, end), other.series[tag].between(-np.inf, end)) for tag in shared)


def _equal(one: Series, other: Series) -> bool:
    return np.array_equal(one.steps, other.steps) and np.array_equal(one.values, other.values)


def identical_notes(methods: Sequence[MethodRuns]) -> Iterator[str]:
    """A note for each set of runs whose series are equal, number for number."""
    sets: list[list[tuple[MethodRuns, Run]]] = []
    for method in methods:
        for run in method.runs:
            same = next((found for found in sets if _identical(found[0][1], run)), None)
            if same is None:
                sets.append([(method, run)])
            else:
                same.append((method, run))
    for found in sets:
        if len(found) > 1:
            labels = dict.fromkeys(method.label for method, _ in found)
            names = [f"{label}, {seeds_of([run for m, run in found if m.label == label])}" for label in labels]
            updates = min(run.updates for _, run in found)
            yield (
                f"Identical: {'; '.join(names)}: all series are equal, number for number, over {updates:,} updates. "
                "They are one training, counted several times."
            )


def _identical(one: Run, other: Run) -> bool:
    return same_numbers(one, other) is True and _worth(one, other) >= CHANCE


def _worth(run: Run, other: Run) -> float:
    """Bits of a run's measured series, as far as both runs go: a value that is rare in its series is worth more.

    A constant series is worth nothing, and a few bins are worth little.
    """
    bits = 0.0
    for tag in (tag for tag in run.series if tag.startswith(MEASURED) and tag in other.series):
        values = run.series[tag].between(-np.inf, _end(run, other)).values
        _, counts = np.unique(values, return_counts=True)
        bits += float((counts * np.log2(len(values) / counts)).sum())
    return bits


def _end(one: Run, other: Run) -> float:
    """Where the last bin ends that both runs have filled."""
    if one.updates == other.updates:
        return np.inf
    # Steps are the middles of bins.
    return min(one.updates, other.updates) - max(one.width, other.width) / 2 + 1e-9
