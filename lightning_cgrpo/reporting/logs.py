"""TensorBoard's event files."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path

import numpy as np

from lightning_cgrpo.reporting.histogram import Buckets
from lightning_cgrpo.reporting.series import FLOAT_DIGITS, Series, rounded

TRAINING = ("reward/", "rate/", "mean/", "threshold/", "multiplier/", "effective_weight/", "groups/informative/")
FAULTS = "faults/"
COLLAPSED = "policy/collapsed_since"
"""Update at which the policy began to collapse; logged after detection."""
EVALUATIONS = ("test/", "test_train/", "val/")
EFFECTIVE_WEIGHTS = "effective_weights/"


@dataclass(frozen=True)
class EventsFile:
    """One process's log.

    Args:
        started: seconds since 1970.
        scalars: of training, by tag.
        histograms: of effective weights, by component and update.
        evaluations: time in seconds since 1970, and last value, by tag.
    """

    started: float
    scalars: dict[str, Series] = field(default_factory=dict)
    histograms: dict[str, dict[int, Buckets]] = field(default_factory=dict)
    evaluations: dict[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def span(self) -> tuple[float, float] | None:
        steps = [series.steps for series in self.scalars.values() if len(series)]
        return (min(s[0] for s in steps), max(s[-1] for s in steps)) if steps else None


@dataclass(frozen=True)
class Log:
    """A run's log, merged from its files."""

    scalars: dict[str, Series]
    histograms: dict[str, dict[int, Buckets]]
    evaluations: dict[str, float]


def read(path: Path) -> EventsFile:
    """Read an events file, up to an unfinished record."""
    # TensorBoard's reader remarks on a missing TensorFlow, and works without.
    logging.getLogger("tensorboard").setLevel(logging.ERROR)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with path.open("rb"):
        pass  # An unreadable file gets a clearer error here than in the reader.
    # 0 keeps all events; unused kinds keep one.
    keep = {"scalars": 0, "histograms": 0, "images": 1, "tensors": 1, "audio": 1, "compressedHistograms": 1}
    events = EventAccumulator(str(path), size_guidance=keep, purge_orphaned_data=False)
    events.Reload()
    tags = events.Tags()
    scalars, evaluations = {}, {}
    for tag in tags["scalars"]:
        if tag.startswith((*TRAINING, FAULTS, COLLAPSED)):
            # The last of several values of a step counts.
            values = {event.step: event.value for event in events.Scalars(tag) if np.isfinite(event.value)}
            steps = sorted(values)
            scalars[tag] = Series(np.array(steps, float), np.array([values[step] for step in steps], float))
        elif tag.startswith(EVALUATIONS):
            found = [(event.wall_time, event.value) for event in events.Scalars(tag) if np.isfinite(event.value)]
            if found:
                evaluations[tag] = max(found)
    histograms: dict[str, dict[int, Buckets]] = {}
    for tag in tags["histograms"]:
        if tag.startswith(EFFECTIVE_WEIGHTS):
            histograms[tag.removeprefix(EFFECTIVE_WEIGHTS)] = {
                event.step: Buckets(value.min, value.max, value.bucket_limit, value.bucket)
                for event in events.Histograms(tag)
                if (value := event.histogram_value).num
            }
    try:
        started = events.FirstEventTimestamp()
    except ValueError:  # The file is still empty.
        started = path.stat().st_mtime
    return EventsFile(started, scalars, histograms, evaluations)


def merged(folders: Sequence[Sequence[EventsFile]]) -> Log:
    """Merge the logs of a run's folders, each resumed from the previous folder.

    From its first update on, a later file replaces earlier values. Only the last folder's evaluations count.
    """
    scalars: dict[str, list[Series]] = {}
    histograms: dict[str, dict[int, Buckets]] = {}
    for file in sorted((file for files in folders for file in files), key=attrgetter("started")):
        if file.span is None:
            continue
        first = file.span[0]
        scalars = {tag: [series.between(-np.inf, first) for series in parts] for tag, parts in scalars.items()}
        histograms = {name: {u: b for u, b in found.items() if u < first} for name, found in histograms.items()}
        for tag, series in file.scalars.items():
            scalars.setdefault(tag, []).append(series)
        for component, updates in file.histograms.items():
            histograms.setdefault(component, {}).update(updates)
    return Log(
        {tag: joined for tag, parts in scalars.items() if len(joined := _joined(parts))},
        {component: dict(sorted(updates.items())) for component, updates in histograms.items() if updates},
        _evaluations(folders[-1]),
    )


def _evaluations(files: Sequence[EventsFile]) -> dict[str, float]:
    """Last value by tag; a later test removes ``test_train/`` values of earlier files."""
    last: dict[str, tuple[float, float]] = {}
    for file in sorted(files, key=attrgetter("started")):
        if any(tag.startswith("test/") for tag in file.evaluations):
            last = {tag: found for tag, found in last.items() if not tag.startswith("test_train/")}
        for tag, found in file.evaluations.items():
            last[tag] = max(found, last.get(tag, found))
    return {tag: rounded(value, FLOAT_DIGITS) for tag, (_, value) in last.items()}


def _joined(parts: Sequence[Series]) -> Series:
    steps = np.concatenate([part.steps for part in parts])
    order = np.argsort(steps, kind="stable")
    return Series(steps[order], np.concatenate([part.values for part in parts])[order])
