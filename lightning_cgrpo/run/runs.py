"""Runs: what a run's record says, with its binned series, values at its end, and tests."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.output import SUMMARY, SUMMARY_FORMAT, write_whole
from lightning_cgrpo.objective.bound import Bound
from lightning_cgrpo.run.logs import Log
from lightning_cgrpo.run.record import RunRecord
from lightning_cgrpo.run.series import FLOAT_DIGITS, Series, bin_width, binned, interval, rounded

LAST = 1 / 8
"""Share of a run's updates averaged in final values."""
DIGITS = 4
"""Significant digits of series."""
REQUIRED = ("name", "status", "seed", "method", "updates", "asked", "faults", "constraints")
"""Keys of every summary."""


@dataclass(frozen=True)
class Run:
    """One run.

    Args:
        series: training's means over bins of `width` updates, by tag.
        final: means over the last part of training, by tag.
        tests: values of the last test, by tag.
        samples: sampled answers as Markdown, by update.
    """

    record: RunRecord
    series: dict[str, Series]
    final: dict[str, float]
    tests: dict[str, float]
    width: float
    samples: Mapping[int, str] = field(default_factory=dict)

    @property
    def seed(self) -> int | None:
        return self.record.seed

    @property
    def updates(self) -> int:
        return self.record.updates

    @property
    def finished(self) -> bool:
        return self.record.status == "finished"

    @property
    def bounds(self) -> dict[str, Bound]:
        """The bounds of all constraints."""
        return {name: of.bound for name, of in self.record.constraints.items()}

    @property
    def enforced(self) -> dict[str, Bound]:
        """The bounds of the enforced constraints."""
        return {name: of.bound for name, of in self.record.constraints.items() if of.enforced}


def read_record(path: Path) -> RunRecord | None:
    """The record in a summary or in a saved run; None for other files.

    Raises:
        UserError: the file is damaged.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    if SUMMARY_FORMAT not in text[:100]:
        return None
    try:
        content = json.loads(text)
        for key in REQUIRED:
            content[key]
        record = RunRecord.read(content)
        if record.saved is not None:
            saved_run(record)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"Expected '{path}' to be the summary of a run, but got a damaged file ({type(error).__name__}: {error})."
        ) from None
    return record


def earlier_folder(folder: Path, record: RunRecord) -> Path | None:
    """The folder from which a run resumed."""
    return None if record.resumed is None else (folder / record.resumed).resolve()


def read_run(folder: Path, record: RunRecord) -> Run | None:
    """A run from its record, its logs, and the logs of the folders from which it resumed; None without updates."""
    folders, before = [folder.resolve()], record
    while (earlier := earlier_folder(folders[0], before)) is not None and earlier not in folders:
        folders.insert(0, earlier)
        before = read_record(earlier / SUMMARY) or RunRecord()
    log = Log()
    for place in folders:
        log.add(place)
    updates = record.updates
    scalars = {tag: _series(rows, updates) for tag, rows in log.scalars.items()}
    scalars = {tag: series for tag, series in scalars.items() if len(series)}
    if not scalars:
        return None
    spacing = interval(max(scalars.values(), key=len).steps)
    # A running run already has its final bins, unless it has only begun.
    width = bin_width(min(record.asked or updates, 10 * updates), spacing)
    start = min(updates * (1 - LAST), max(series.steps[-1] for series in scalars.values()))
    last = {tag: series.between(start, np.inf) for tag, series in scalars.items()}
    return Run(
        record,
        {tag: binned(series, width).rounded(DIGITS) for tag, series in scalars.items()},
        {tag: rounded(series.mean(), FLOAT_DIGITS) for tag, series in last.items() if len(series)},
        {tag: rounded(value, FLOAT_DIGITS) for tag, value in log.tests.items()},
        width,
        log.samples,
    )


def saved_run(record: RunRecord) -> Run:
    """The run that `save` wrote."""
    saved = record.saved
    assert saved is not None
    steps = np.array(saved.steps, float)
    series = {}
    for tag, row in saved.series.items():
        values = np.array(row if isinstance(row, list) else [row] * len(steps), float)
        known = ~np.isnan(values)
        series[tag] = Series(steps[known], values[known])
    return Run(record, series, saved.final, saved.tests, saved.width)


def save_run(run: Run, path: Path) -> None:
    """Write a run as JSON, a line per key and per series for readable differences."""
    rows, steps = {}, np.unique(np.concatenate([np.zeros(0), *(s.steps for s in run.series.values())]))
    for tag, series in run.series.items():
        known = dict(zip(series.steps.tolist(), series.values.tolist(), strict=True))
        row = [known.get(step) for step in steps.tolist()]
        rows[tag] = row[0] if len(set(row)) == 1 else row
    values = {"final": run.final, "tests": run.tests, "width": run.width, "steps": steps.tolist()}
    lines = [_line(key, value) for key, value in {**run.record.as_json(), **values}.items()]
    lines.append('"series":{\n' + ",\n".join(_line(tag, row) for tag, row in rows.items()) + "}")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, "{" + ",\n".join(lines) + "}\n")


def _series(rows: Mapping[int, float], updates: int) -> Series:
    steps = sorted(step for step in rows if step < updates)
    return Series(np.array(steps, float), np.array([rows[step] for step in steps], float))


def _line(key: str, value: Any) -> str:
    return f"{json.dumps(key)}:{json.dumps(_short(value), separators=(',', ':'))}"


def _short(value: Any) -> Any:
    """Whole numbers without ``.0``."""
    if isinstance(value, Mapping):
        return {key: _short(part) for key, part in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [_short(part) for part in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
