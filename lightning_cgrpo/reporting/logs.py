"""TensorBoard's event files, read with TensorBoard's own reader; the files of one run become one log."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from lightning_cgrpo.reporting.histogram import Buckets
from lightning_cgrpo.reporting.series import FLOAT_DIGITS, Array, Series, rounded

TRAINING = ("reward/", "rate/", "threshold/", "multiplier/", "effective_weight/", "groups/informative/")
"""Scalars of training that a report shows."""
FAULTS = "faults/"
"""Counts of training that a report tells."""
COLLAPSED = "policy/collapsed_since"
"""The update at which the policy began to collapse; logged from the detection on."""
EVALUATIONS = ("test/", "test_train/", "val/")
EFFECTIVE_WEIGHTS = "effective_weights/"
"""Histograms of effective weights, by component."""


@dataclass(frozen=True)
class EventsFile:
    """What one process wrote.

    Args:
        path: of the file.
        started: on the clock, in seconds.
        scalars: training's, by tag.
        histograms: by component and update.
        evaluations: by tag (``test/…``, ``test_train/…``, ``val/…``): the clock and the value of the last.
    """

    path: Path
    started: float
    scalars: dict[str, Series] = field(default_factory=dict)
    histograms: dict[str, dict[int, Buckets]] = field(default_factory=dict)
    evaluations: dict[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def span(self) -> tuple[float, float] | None:
        """The first and the last update in it, if there is any."""
        steps = [series.steps for series in self.scalars.values() if len(series)]
        return (min(s[0] for s in steps), max(s[-1] for s in steps)) if steps else None


@dataclass(frozen=True)
class Log:
    """A run's log: `EventsFile`, without the origins of the values."""

    scalars: dict[str, Series]
    histograms: dict[str, dict[int, Buckets]]
    evaluations: dict[str, float]


def read(path: Path) -> EventsFile:
    """Read an events file; a record that is still being written ends it.

    Raises:
        OSError: if it can't be read.
    """
    # Without an installed TensorFlow the reader works as well, and remarks on it.
    logging.getLogger("tensorboard").setLevel(logging.ERROR)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with path.open("rb"):
        pass  # The reader would say less clearly that it isn't readable.
    # 0 keeps all; of what isn't used as little as possible.
    keep = {"scalars": 0, "histograms": 0, "images": 1, "tensors": 1, "audio": 1, "compressedHistograms": 1}
    events = EventAccumulator(str(path), size_guidance=keep, purge_orphaned_data=False)
    events.Reload()
    tags = events.Tags()
    scalars, evaluations = {}, {}
    for tag in tags["scalars"]:
        if tag.startswith((*TRAINING, FAULTS, COLLAPSED)):
            scalars[tag] = _series([(event.step, event.value) for event in events.Scalars(tag)])
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
    except ValueError:  # There is nothing in it yet.
        started = path.stat().st_mtime
    return EventsFile(path, started, scalars, histograms, evaluations)


def _series(points: Sequence[tuple[int, float]]) -> Series:
    """Sorted by step; of a step that is there twice the last; without values that aren't finite."""
    values = {step: value for step, value in points if np.isfinite(value)}
    steps = sorted(values)
    return Series(np.array(steps, float), np.array([values[step] for step in steps], float))


def merged(folders: Sequence[Sequence[EventsFile]]) -> Log:
    """One log of the folders of a run, each resumed from the one before.

    Whatever started later wins from its first update on: training went on from there. Evaluations are those of the
    last folder, since earlier ones were of checkpoints before the end.
    """
    scalars: dict[str, list[Series]] = {}
    histograms: dict[str, dict[int, Buckets]] = {}
    for file in sorted((file for files in folders for file in files), key=_started):
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


def _started(file: EventsFile) -> float:
    return file.started


def _evaluations(files: Sequence[EventsFile]) -> dict[str, float]:
    """The last evaluations of a folder; a test without training prompts ends an earlier one of them."""
    last: dict[str, tuple[float, float]] = {}
    for file in sorted(files, key=_started):
        if any(tag.startswith("test/") for tag in file.evaluations):
            last = {tag: found for tag, found in last.items() if not tag.startswith("test_train/")}
        for tag, found in file.evaluations.items():
            last[tag] = max(found, last.get(tag, found))
    return {tag: rounded(value, FLOAT_DIGITS) for tag, (_, value) in last.items()}


def _joined(parts: Sequence[Series]) -> Series:
    steps: Array = np.concatenate([part.steps for part in parts])
    values: Array = np.concatenate([part.values for part in parts])
    order = np.argsort(steps, kind="stable")
    return Series(steps[order], values[order])
