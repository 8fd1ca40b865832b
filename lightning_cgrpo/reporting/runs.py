"""Runs, grouped by method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lightning_cgrpo.cli.method import Method, constraints_of, key_of
from lightning_cgrpo.objective.constraint import Constraint
from lightning_cgrpo.reporting.histogram import pooled
from lightning_cgrpo.reporting.logs import COLLAPSED, FAULTS, TRAINING, Log
from lightning_cgrpo.reporting.series import Series, bin_width, binned, interval, moving_average, rounded
from lightning_cgrpo.reporting.summary import final_values, last_part, window_of

LAST = 1 / 8
"""Share of a run's updates averaged in final values."""
DIGITS = 4
"""Significant digits of series and distributions."""
HANDFUL = 10
"""Bin widths assume at most this many times a running run's updates."""
SKIPPED = "skipped_steps"

Identity = tuple[str, Any]
"""A method's text with a seed; without a known seed, a folder."""


@dataclass(frozen=True)
class Run:
    """One method's run with one seed.

    Args:
        seed: None if unknown.
        max_updates: requested; None if epochs decide.
        series: binned training scalars, by tag.
        final: means over the last part of training, by tag.
        distributions: the last part's shares ``[BINS]`` of groups by effective weight, by component.
        evaluations: last values, by tag.
        folders: log folders, as ``name/version_N``.
        width: updates per bin.
        pooled: share of the updates in `distributions`.
        begins: first known update, if earlier updates are missing; else 0.
        faults: logged updates with non-finite values, by signal; under ``skipped_steps``, skipped optimizer steps.
        collapsed: update at which a collapse began, if any.
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
        """A tag's moving average over `window_of` updates."""
        bins = self.series.get(tag, Series(np.zeros(0), np.zeros(0)))
        average = moving_average(bins, self.width, window_of(self.updates))
        # The last bin need not be full.
        return Series(np.minimum(average.steps, self.updates), average.values)

    @property
    def finished(self) -> bool:
        return self.max_updates is None or self.updates >= self.max_updates

    @property
    def identity(self) -> Identity:
        return key_of(self.method), self.folders[0] if self.seed is None and self.folders else self.seed


@dataclass(frozen=True)
class MethodRuns:
    """A method's runs, one per seed.

    Args:
        others: further starts of the same seeds, for notes only.
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
        return list(dict.fromkeys(tag for run in self.runs for tag in run.series))

    def series(self, tag: str) -> list[Series]:
        return [run.series[tag] for run in self.runs if tag in run.series]

    @property
    def finished(self) -> bool:
        return all(run.finished for run in self.runs)

    @property
    def title(self) -> str:
        return self.label if self.finished else f"{self.label} ({progress(self.runs)})"


def progress(runs: Sequence[Run]) -> str:
    """Text of the updates done, and requested by unfinished runs."""
    done = sorted({run.updates for run in runs})
    text = f"{done[0]:,}" if len(done) == 1 else f"{done[0]:,} to {done[-1]:,}"
    asked = max((run.max_updates or 0 for run in runs if not run.finished), default=0)
    return f"{text} of {asked:,}" if asked else text


def seeds_of(runs: Sequence[Run]) -> str:
    """Text such as "seeds 0, 1"."""
    seeds = ", ".join("?" if run.seed is None else str(run.seed) for run in runs)
    return f"seed{'s' if len(runs) > 1 else ''} {seeds}"


def run_of_log(
    log: Log, method: Method, seed: int | None, max_updates: int | None, folders: tuple[str, ...], last: float = LAST
) -> Run:
    """Build a run from its log, rounded like saved runs."""
    longest = max(log.scalars.values(), key=len, default=Series(np.zeros(0), np.zeros(0)))
    spacing = interval(longest.steps)
    end = max((series.steps[-1] for series in log.scalars.values()), default=-1.0)
    updates = int(end + 1)
    if updates:
        # Updates between logged updates don't count as missing.
        updates = int(end + spacing)
        updates = min(updates, max_updates) if max_updates and max_updates > end else updates
    # A running run already has its final bins, unless it has only begun.
    width = bin_width(min(max_updates or updates, HANDFUL * updates), spacing)
    start = last_part(updates, last, end)
    begins = min((series.steps[0] for series in log.scalars.values()), default=0.0)
    scalars = {tag: series for tag, series in log.scalars.items() if tag.startswith(TRAINING)}
    shares = {name: pooled(b for u, b in found.items() if u >= start) for name, found in log.histograms.items()}
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
    found = {tag.removeprefix(FAULTS): s.values for tag, s in scalars.items() if tag.startswith(FAULTS)}
    return {name: int(v.sum() if name == SKIPPED else (v > 0).sum()) for name, v in found.items() if v.any()}


def constraints_of_runs(runs: Sequence[Run]) -> dict[str, Constraint]:
    """A method's constraints; without a configuration, thresholds count as upper bounds."""
    declared = constraints_of(runs[0].method)
    if declared is not None:
        return declared
    return {
        tag.removeprefix("threshold/"): Constraint(at_most=min(max(float(series.values[-1]), 0.0), 1.0))
        for run in runs
        for tag, series in run.series.items()
        if tag.startswith("threshold/")
    }
