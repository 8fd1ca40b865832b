"""What a report knows of one run, from its log or from a saved file; and the runs of one method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from lightning_cgrpo.constraint import Constraint
from lightning_cgrpo.reporting.histogram import pooled
from lightning_cgrpo.reporting.logs import Log
from lightning_cgrpo.reporting.method import Method, constraints_of
from lightning_cgrpo.reporting.series import Series, bin_width, binned, interval
from lightning_cgrpo.reporting.summary import Control, control, final_values, last_part

LAST = 1 / 8
"""The share of a run's updates that final values are means over."""


@dataclass(frozen=True)
class Run:
    """A run.

    Args:
        method: what makes its method, see `method_of`.
        seed: none if the configuration doesn't tell.
        updates: done so far, as far as they are logged.
        max_updates: asked for; none where the number of epochs decides.
        series: training's scalars by tag, in bins of updates.
        final: means of the scalars over the last part of the updates, by tag.
        control: how each constraint was kept, by name.
        distributions: shares ``[BINS]`` of the groups of the last part by their effective weights, by component.
        evaluations: the last values of ``test/…`` and ``val/…``.
        folders: where it was logged, as ``name/version_N``.
    """

    method: Method
    seed: int | None
    updates: int
    max_updates: int | None
    series: dict[str, Series]
    final: dict[str, float]
    control: dict[str, Control]
    distributions: dict[str, list[float]]
    evaluations: dict[str, float]
    folders: tuple[str, ...]

    @property
    def finished(self) -> bool:
        """Whether it has done all its updates; a run that ends by epochs counts as finished."""
        return self.max_updates is None or self.updates >= self.max_updates


@dataclass(frozen=True)
class MethodRuns:
    """The runs of a method, one per seed.

    Args:
        label: its name in figures and tables.
        constraints: all that it declares, in their order.
        enforced: the constraints whose rates decide whether it is feasible.
    """

    label: str
    method: Method
    runs: list[Run]
    constraints: dict[str, Constraint] = field(default_factory=dict)

    @property
    def enforced(self) -> dict[str, Constraint]:
        return {name: c for name, c in self.constraints.items() if c.role == "constrain"}

    @property
    def tags(self) -> list[str]:
        """Training's tags that any of the runs has."""
        return list(dict.fromkeys(tag for run in self.runs for tag in run.series))

    def series(self, tag: str) -> list[Series]:
        """The seeds' series of a tag, of those that have it."""
        return [run.series[tag] for run in self.runs if tag in run.series]


def run_of_log(
    log: Log, method: Method, seed: int | None, max_updates: int | None, folders: tuple[str, ...], last: float = LAST
) -> Run:
    """A run from its log."""
    spacing = spacing_of(log.scalars)
    end = max((series.steps[-1] for series in log.scalars.values()), default=-1.0)
    updates = int(end + 1)
    if updates:
        # The updates after the last logged one are not known to be missing.
        updates = int(end + spacing)
        updates = min(updates, max_updates) if max_updates and max_updates > end else updates
    # A running run's bins are those that it will have in the end, unless it has only begun.
    width = bin_width(max_updates if max_updates and updates > max_updates / 5 else updates, spacing)
    start = last_part(updates, last, end)
    constraints = constraints_of(method) or guessed_constraints(log.scalars)
    return Run(
        method,
        seed,
        updates,
        max_updates,
        {tag: binned(series, width) for tag, series in log.scalars.items()},
        final_values(log.scalars, start),
        {name: c for name in constraints if (c := control(log.scalars, name, constraints[name], updates)) is not None},
        {name: pooled(b for u, b in found.items() if u >= start).tolist() for name, found in log.histograms.items()},
        log.evaluations,
        folders,
    )


def spacing_of(scalars: Mapping[str, Series]) -> float:
    """Updates between two logged ones."""
    longest = max(scalars.values(), key=len, default=Series(np.zeros(0), np.zeros(0)))
    return interval(longest.steps)


def guessed_constraints(tags: Mapping[str, Series]) -> dict[str, Constraint]:
    """The constraints of a run without a configuration, from its thresholds, which are taken for upper bounds."""
    return {
        tag.removeprefix("threshold/"): Constraint(at_most=min(max(float(series.values[-1]), 0.0), 1.0))
        for tag, series in tags.items()
        if tag.startswith("threshold/")
    }


def constraints_of_runs(runs: Sequence[Run]) -> dict[str, Constraint]:
    """The constraints of a method's runs."""
    declared = constraints_of(runs[0].method)
    if declared is not None:
        return declared
    return {name: c for run in runs for name, c in guessed_constraints(run.series).items()}
