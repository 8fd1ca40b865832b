"""Logs of Lightning's CSVLogger."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np

from lightning_cgrpo.output import HISTOGRAMS
from lightning_cgrpo.reporting.histogram import Buckets
from lightning_cgrpo.reporting.logs import COLLAPSED, EFFECTIVE_WEIGHTS, EVALUATIONS, FAULTS, TRAINING, EventsFile
from lightning_cgrpo.reporting.series import Series

METRICS = "metrics.csv"
EVALUATION_FOLDERS = ("test", "validate")
"""Subfolders of a run in which the commands log, because a CSVLogger removes the metrics that it finds."""


def run_folder(file: Path) -> Path:
    """The folder of the run that a log belongs to."""
    inside = file.name == METRICS and file.parent.name in EVALUATION_FOLDERS
    return file.parent.parent if inside else file.parent


def read_csv(path: Path) -> EventsFile:
    """Read ``metrics.csv`` and the histograms beside it; lines and values that are not finite are left out.

    A CSV log holds no times, so that the file's time of writing stands for all.
    """
    written = path.stat().st_mtime
    values: dict[str, dict[int, float]] = {}
    evaluations: dict[str, tuple[float, float]] = {}
    with path.open(encoding="utf-8", newline="") as lines:
        for line in csv.DictReader(lines):
            step = line.pop("step", None)
            for tag, text in line.items():
                if tag is None or (value := _finite(text)) is None:
                    continue
                if tag.startswith((*TRAINING, FAULTS, COLLAPSED)) and step:
                    values.setdefault(tag, {})[int(step)] = value
                elif tag.startswith(EVALUATIONS):
                    evaluations[tag] = (written, value)
    scalars = {
        tag: Series(np.array(steps := sorted(found), float), np.array([found[step] for step in steps], float))
        for tag, found in values.items()
    }
    return EventsFile(written, scalars, _histograms(path.parent / HISTOGRAMS), evaluations)


def _finite(text: str | list[str] | None) -> float | None:
    try:
        value = float(text)  # type: ignore[arg-type]
    except (TypeError, ValueError):  # empty, or a truncated line
        return None
    return value if np.isfinite(value) else None


def _histograms(path: Path) -> dict[str, dict[int, Buckets]]:
    found: dict[str, dict[int, Buckets]] = {}
    for text in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            line = json.loads(text)
        except ValueError:  # the last line of a killed run
            continue
        if line["tag"].startswith(EFFECTIVE_WEIGHTS):
            buckets = Buckets(line["min"], line["max"], line["limits"], line["counts"])
            found.setdefault(line["tag"].removeprefix(EFFECTIVE_WEIGHTS), {})[line["step"]] = buckets
    return found
