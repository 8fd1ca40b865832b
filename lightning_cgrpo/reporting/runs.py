"""What a report knows of one run, from its log or from a saved file; and the runs of one method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lightning_cgrpo.cli.method import Method, constraints_of
from lightning_cgrpo.objective.constraint import Constraint
from lightning_cgrpo.reporting.histogram import pooled
from lightning_cgrpo.reporting.logs import COLLAPSED, FAULTS, TRAINING, Log
from lightning_cgrpo.reporting.series import Series, bin_width, binned, interval, moving_average, rounded
from lightning_cgrpo.reporting.summary import final_values, last_part, window_of

LAST = 1 / 8
"""The share of a run's updates that final values are means over."""
DIGITS = 4
"""Of series and distributions."""
HANDFUL = 10
"""Bins that a run has at most in the end, as long as it has less of its own."""
SKIPPED = "skipped_steps"

Identity = tuple[str, Any]
"""What two parts of one run share: the text of its method, and its seed (or its folder, where no seed is told)."""


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
        distributions: shares ``[BINS]`` of the groups of the last part by their effective weights, by component.
        evaluations: the last values of ``test/…``, ``test_train/…`` and ``val/…``.
        folders: where it was logged, as ``name/version_N``.
        width: updates per bin.
        pooled: the share of the updates that the distributions are over.
        begins: the first update that is known, where the ones before are missing.
        faults: logged updates with values that weren't finite, by signal; and optimizer steps skipped for the like,
            ``skipped_steps``.
        collapsed: the update at which the policy began to collapse, if it did.
    """

    method: Method
    seed: int | None
    updates: int
    max_updates: int | None
    series: dict[str, Series]
    final: dict[str, float]
    distributions: dict[str, list[float]]
    evaluations: dict[str, float]
    folders: tuple[str, ...]
    width: float = 1.0
    pooled: float = LAST
    begins: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    collapsed: int | None = None

    def smooth(self, tag: str) -> Series:
        """The moving average of a tag; empty if it isn't known."""
        bins = self.series.get(tag, Series(np.zeros(0), np.zeros(0)))
        average = moving_average(bins, self.width, window_of(self.updates))
        # The last bin need not be full.
        return Series(np.minimum(average.steps, self.updates), average.values)

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
        others: further starts of the same seeds, which nothing is drawn or computed from.
    """

    label: str
    method: Method
    runs: list[Run]
    constraints: dict[str, Constraint] = field(default_factory=dict)
    others: list[Run] = field(default_factory=list)

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

    @property
    def finished(self) -> bool:
        return all(run.finished for run in self.runs)

    @property
    def title(self) -> str:
        """The label, with how far the runs are if they aren't finished."""
        return self.label if self.finished else f"{self.label} ({progress(self.runs)})"


def progress(runs: Sequence[Run]) -> str:
    """Updates done, from the fewest to the most, and of how many where a run isn't finished."""
    done = sorted({run.updates for run in runs})
    text = f"{done[0]:,}" if len(done) == 1 else f"{done[0]:,} to {done[-1]:,}"
    asked = max((run.max_updates or 0 for run in runs if not run.finished), default=0)
    return f"{text} of {asked:,}" if asked else text


def seeds_of(runs: Sequence[Run]) -> str:
    """The runs' seeds, in words."""
    seeds = ", ".join("?" if run.seed is None else str(run.seed) for run in runs)
    return f"seed{'s' if len(runs) > 1 else ''} {seeds}"


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
    # A running run's bins are those that it will have in the end, unless only a handful of them have begun.
    width = bin_width(min(max_updates or updates, HANDFUL * updates), spacing)
    start = last_part(updates, last, end)
    begins = min((series.steps[0] for series in log.scalars.values()), default=0.0)
    scalars = {tag: series for tag, series in log.scalars.items() if tag.startswith(TRAINING)}
    shares = {name: pooled(b for u, b in found.items() if u >= start) for name, found in log.histograms.items()}
    # Rounded here and not where it is saved: a saved run is the same as its log.
    return Run(
        method,
        seed,
        updates,
        max_updates,
        {tag: binned(series, width).rounded(DIGITS) for tag, series in scalars.items()},
        final_values(scalars, start),
        {name: [rounded(share, DIGITS) for share in found.tolist()] for name, found in shares.items()},
        log.evaluations,
        folders,
        width,
        last,
        int(begins) if begins > spacing else 0,
        _faults(log.scalars),
        int(log.scalars[COLLAPSED].values[-1]) if COLLAPSED in log.scalars else None,
    )


def _faults(scalars: Mapping[str, Series]) -> dict[str, int]:
    """Updates with faults; of skipped steps their number."""
    found = {tag.removeprefix(FAULTS): s.values for tag, s in scalars.items() if tag.startswith(FAULTS)}
    return {name: int(v.sum() if name == SKIPPED else (v > 0).sum()) for name, v in found.items() if v.any()}


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
