"""Runs: a run's record, with its binned series, values at its end, and tests."""

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
from lightning_cgrpo.run.series import FLOAT_DIGITS, Series, bin_width, binned, round_significant, usual_interval

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
        return {name: constraint.bound for name, constraint in self.record.constraints.items()}

    @property
    def enforced(self) -> dict[str, Bound]:
        """The bounds of the enforced constraints."""
        constraints = self.record.constraints
        return {name: constraint.bound for name, constraint in constraints.items() if constraint.enforced}


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
            content[key]  # raises KeyError for a missing key
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
    # The logs of all folders, the oldest first.
    log = Log()
    for place in _folders_of_run(folder, record):
        log.add(place)
    updates = record.updates
    logged: dict[str, Series] = {}
    for tag, rows in log.scalars.items():
        steps = sorted(step for step in rows if step < updates)
        if steps:
            values = [rows[step] for step in steps]
            logged[tag] = Series(np.array(steps, float), np.array(values, float))
    if not logged:
        return None

    # Bins. A running run already has its final bins, unless it has only begun.
    spacing = usual_interval(max(logged.values(), key=len).steps)
    width = bin_width(min(record.asked or updates, 10 * updates), spacing)
    binned_series = {tag: binned(series, width).rounded(DIGITS) for tag, series in logged.items()}

    # Final values: means over the last updates. If every series ends before them, values at the latest logged update.
    start = min(updates * (1 - LAST), max(series.steps[-1] for series in logged.values()))
    final = {}
    for tag, series in logged.items():
        last = series.between(start, np.inf)
        if len(last):
            final[tag] = round_significant(last.mean(), FLOAT_DIGITS)
    tests = {tag: round_significant(value, FLOAT_DIGITS) for tag, value in log.tests.items()}
    return Run(record, binned_series, final, tests, width, log.samples)


def _folders_of_run(folder: Path, record: RunRecord) -> list[Path]:
    """The folder of a run, after the folders from which it resumed, the oldest first."""
    folders = [folder.resolve()]
    earlier = earlier_folder(folders[0], record)
    while earlier is not None and earlier not in folders:
        folders.insert(0, earlier)
        earlier = earlier_folder(earlier, read_record(earlier / SUMMARY) or RunRecord())
    return folders


def saved_run(record: RunRecord) -> Run:
    """The run that `save_run` wrote."""
    saved = record.saved
    assert saved is not None
    steps = np.array(saved.steps, float)
    series = {}
    for tag, row in saved.series.items():
        if not isinstance(row, list):  # one value stands for all steps
            row = [row] * len(steps)
        values = np.array(row, float)
        known = ~np.isnan(values)
        series[tag] = Series(steps[known], values[known])
    return Run(record, series, saved.final, saved.tests, saved.width)


def save_run(run: Run, path: Path) -> None:
    """Write a run as JSON, a line per key and per series for readable differences."""
    all_steps = [series.steps for series in run.series.values()]
    steps = np.unique(np.concatenate([np.zeros(0), *all_steps])).tolist()
    series_lines = []
    for tag, series in run.series.items():
        known = dict(zip(series.steps.tolist(), series.values.tolist(), strict=True))
        row = [known.get(step) for step in steps]
        is_constant = len(set(row)) == 1
        series_lines.append(_json_line(tag, row[0] if is_constant else row))
    values = {"final": run.final, "tests": run.tests, "width": run.width, "steps": steps}
    lines = [_json_line(key, value) for key, value in {**run.record.as_json(), **values}.items()]
    lines.append('"series":{\n' + ",\n".join(series_lines) + "}")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, "{" + ",\n".join(lines) + "}\n")


def _json_line(key: str, value: Any) -> str:
    return f"{json.dumps(key)}:{json.dumps(_shorten_numbers(value), separators=(',', ':'))}"


def _shorten_numbers(value: Any) -> Any:
    """The value, in which whole numbers have no ``.0``."""
    if isinstance(value, Mapping):
        return {key: _shorten_numbers(part) for key, part in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [_shorten_numbers(part) for part in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
