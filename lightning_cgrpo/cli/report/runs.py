"""Runs: what a run's summary says, with its binned series, values at its end, and tests."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np

from lightning_cgrpo.cli.report.logs import Log
from lightning_cgrpo.cli.report.series import FLOAT_DIGITS, Series, bin_width, binned, interval, rounded
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.output import SUMMARY, SUMMARY_FORMAT, write_whole
from lightning_cgrpo.objective.bound import Bound

LAST = 1 / 8
"""Share of a run's updates averaged in final values."""
DIGITS = 4
"""Significant digits of series."""
NUMBERS = (int, NoneType)
KEYS: dict[str, Any] = {
    "name": str,
    "status": str,
    "seed": NUMBERS,
    "method": dict,
    "updates": int,
    "asked": NUMBERS,
    "faults": dict,
}
SAVED = ("final", "tests", "distributions", "width", "steps", "series")
"""Keys of a saved run, beside the keys of its summary; the oldest committed runs have distributions of weights, too."""

Summary = Mapping[str, Any]


@dataclass(frozen=True)
class Run:
    """One run.

    Args:
        series: training's means over bins of `width` updates, by tag.
        final: means over the last part of training, by tag.
        tests: values of the last test, by tag.
        samples: sampled answers as Markdown, by update.
    """

    summary: Summary
    series: dict[str, Series]
    final: dict[str, float]
    tests: dict[str, float]
    width: float
    samples: Mapping[int, str] = field(default_factory=dict)

    @property
    def seed(self) -> int | None:
        return self.summary["seed"]

    @property
    def updates(self) -> int:
        return int(self.summary["updates"])

    @property
    def finished(self) -> bool:
        return bool(self.summary["status"] == "finished")

    def bounds(self, roles: Sequence[str] = ("constrain", "monitor")) -> dict[str, Bound]:
        """The bounds of the constraints of some roles."""
        declared = self.summary["constraints"]
        keys = ("kind", "direction", "threshold")
        return {name: Bound(*(one[k] for k in keys)) for name, one in declared.items() if one["role"] in roles}


def read_summary(path: Path) -> Summary | None:
    """A summary or a saved run; None for other files.

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
        record = json.loads(text)
        wrong = [key for key, kind in KEYS.items() if not isinstance(record[key], kind)]
        if wrong:
            raise ValueError(f"its {wrong[0]} is {str(record[wrong[0]])[:40]!r}")
        (saved_run(record) if "series" in record else Run(record, {}, {}, {}, 1.0)).bounds()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"Expected '{path}' to be the summary of a run, but got a damaged file ({type(error).__name__}: {error})."
        ) from None
    return record


def earlier_folder(folder: Path, summary: Summary) -> Path | None:
    """The folder from which a run resumed."""
    resumed = summary.get("resumed")
    return None if resumed is None else (folder / resumed).resolve()


def read_run(folder: Path, summary: Summary) -> Run | None:
    """A run from its summary, its logs, and the logs of the folders from which it resumed; None without updates."""
    folders, before = [folder.resolve()], summary
    while (earlier := earlier_folder(folders[0], before)) is not None and earlier not in folders:
        folders.insert(0, earlier)
        before = read_summary(earlier / SUMMARY) or {}
    log = Log()
    for place in folders:
        log.add(place)
    updates = int(summary["updates"])
    scalars = {tag: _series(rows, updates) for tag, rows in log.scalars.items()}
    scalars = {tag: series for tag, series in scalars.items() if len(series)}
    if not scalars:
        return None
    spacing = interval(max(scalars.values(), key=len).steps)
    # A running run already has its final bins, unless it has only begun.
    width = bin_width(min(summary["asked"] or updates, 10 * updates), spacing)
    start = min(updates * (1 - LAST), max(series.steps[-1] for series in scalars.values()))
    last = {tag: series.between(start, np.inf) for tag, series in scalars.items()}
    return Run(
        summary,
        {tag: binned(series, width).rounded(DIGITS) for tag, series in scalars.items()},
        {tag: rounded(series.mean(), FLOAT_DIGITS) for tag, series in last.items() if len(series)},
        {tag: rounded(value, FLOAT_DIGITS) for tag, value in log.tests.items()},
        width,
        log.samples,
    )


def saved_run(record: Summary) -> Run:
    """The run that `save` wrote."""
    steps = np.array(record["steps"], float)
    series = {}
    for tag, row in record["series"].items():
        values = np.array(row if isinstance(row, list) else [row] * len(steps), float)
        known = ~np.isnan(values)
        series[tag] = Series(steps[known], values[known])
    return Run(record, series, record["final"], record["tests"], record["width"])


def save(run: Run, path: Path) -> None:
    """Write a run as JSON, a line per key and per series for readable differences."""
    rows, steps = {}, np.unique(np.concatenate([np.zeros(0), *(s.steps for s in run.series.values())]))
    for tag, series in run.series.items():
        known = dict(zip(series.steps.tolist(), series.values.tolist(), strict=True))
        row = [known.get(step) for step in steps.tolist()]
        rows[tag] = row[0] if len(set(row)) == 1 else row
    kept = {key: value for key, value in run.summary.items() if key not in SAVED}
    values = {"final": run.final, "tests": run.tests, "width": run.width, "steps": steps.tolist()}
    lines = [_line(key, value) for key, value in {**kept, **values}.items()]
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
