"""A run's logged values, from TensorBoard's event files or a CSV log."""

from __future__ import annotations

import csv
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

TRAINING = ("reward/", "rate/", "mean/", "threshold/", "multiplier/", "effective_weight/")
TESTS = ("test/", "test_train/")
SAMPLES = "samples"
METRICS = "metrics.csv"


@dataclass
class Log:
    """Logged values.

    Resumes are exact, so a value that two files hold for one update is the same value.

    Args:
        scalars: of training, by tag and update.
        tests: values of the last test, by tag.
        samples: sampled answers as Markdown, by update.
    """

    scalars: dict[str, dict[int, float]] = field(default_factory=dict)
    tests: dict[str, float] = field(default_factory=dict)
    samples: dict[int, str] = field(default_factory=dict)

    def add(self, folder: Path) -> None:
        """Add all logs in a run's folder, the oldest first; a CSV log beside event files repeats them."""
        event_files = sorted(folder.glob("*.tfevents.*"), key=lambda file: file.name)  # The names begin with the time.
        # A CSVLogger removes the metrics that it finds, so tests log into folders of their own.
        tables = sorted([*folder.glob(METRICS), *folder.glob(f"*/{METRICS}")], key=lambda file: file.stat().st_mtime)
        read_values = _read_events if event_files else _read_table
        self.tests = {}  # Tests in an earlier folder are tests of an earlier checkpoint.
        for file in event_files or tables:
            tests: dict[str, float] = {}
            for tag, update, value in read_values(file):
                if tag == SAMPLES:
                    self.samples[update] = value
                elif tag.startswith(TRAINING) and np.isfinite(value):
                    self.scalars.setdefault(tag, {})[update] = value
                elif tag.startswith(TESTS) and np.isfinite(value):
                    tests[tag] = value
            self.tests = tests or self.tests


def _read_events(path: Path) -> Iterator[tuple[str, int, Any]]:
    """Tag, update and value of each event, up to an unfinished record."""
    # TensorBoard's reader remarks on a missing TensorFlow, and works without.
    logging.getLogger("tensorboard").setLevel(logging.ERROR)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    # 0 keeps all events; unused kinds keep one.
    keep = {"scalars": 0, "histograms": 1, "images": 1, "tensors": 0, "audio": 1, "compressedHistograms": 1}
    events = EventAccumulator(str(path), size_guidance=keep, purge_orphaned_data=False)
    events.Reload()
    tags = events.Tags()
    for tag in tags["scalars"]:
        for event in events.Scalars(tag):
            yield tag, event.step, event.value
    samples = f"{SAMPLES}/text_summary"
    if samples in tags["tensors"]:
        for event in events.Tensors(samples):
            yield SAMPLES, event.step, event.tensor_proto.string_val[0].decode("utf-8", "replace")


def _read_table(path: Path) -> Iterator[tuple[str, int, Any]]:
    """Tag, update and value of ``metrics.csv`` and of the samples beside it; truncated lines are left out."""
    with path.open(encoding="utf-8", newline="") as lines:
        for line in csv.DictReader(lines):
            step = int(line.pop("step", None) or 0)
            for tag, text in line.items():
                try:
                    yield tag, step, float(text)
                except (TypeError, ValueError):
                    continue
    for file in sorted((path.parent / SAMPLES).glob("*.md")):
        yield SAMPLES, int(file.stem), file.read_text(encoding="utf-8", errors="replace")
