"""Runs as small JSON files, so that a report can be completed later on. docs/reporting.md lists the keys."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from lightning_cgrpo.reporting.histogram import BINS
from lightning_cgrpo.reporting.labels import slug
from lightning_cgrpo.reporting.method import key_of, renewed
from lightning_cgrpo.reporting.runs import Run
from lightning_cgrpo.reporting.series import Series
from lightning_cgrpo.reporting.summary import Control, final_values, last_part

FORMAT = "lightning_cgrpo run 1"
DIGITS = 4
ROUNDED = ("final", "evaluations")
"""What is rounded, beside the series: settings and steps are not."""


def write_all(labeled: Sequence[tuple[str, Run]], last: float, folder: Path) -> None:
    """Write runs, each in the place of what was saved of it before, and none in the place of another run.

    Args:
        labeled: runs with the labels of their methods, which name the files.
    """
    there = {path: identity(run) for path in folder.glob("*.json") if (run := _known(path)) is not None}
    written = {identity(run) for _, run in labeled}
    used = {path for path, of in there.items() if of not in written}
    for label, run in labeled:
        seed = "" if run.seed is None else f"_seed{run.seed}"
        names = (f"{slug(label)}{f'-{n}' if n > 1 else ''}{seed}.json" for n in count(1))
        path = next(folder / name for name in names if folder / name not in used)
        used.add(path)
        write(run, last, path)
    # Labels, and with them the names of files, follow from the methods at hand.
    for path in there.keys() - used:
        path.unlink()


def identity(run: Run) -> tuple[str, Any]:
    """What two runs share that are one: the method, and the seed (or the folder, where no seed is told)."""
    return key_of(run.method), run.folders[0] if run.seed is None and run.folders else run.seed


def _known(path: Path) -> Run | None:
    try:
        return read(path, 1.0)
    except ValueError:
        return None


def write(run: Run, last: float, path: Path) -> None:
    """Write a run; `last` is the share of updates that its final values are over."""
    record = {
        "format": FORMAT,
        "method": run.method,
        "seed": run.seed,
        "folders": list(run.folders),
        "updates": run.updates,
        "max_updates": run.max_updates,
        "last": last,
        "final": run.final,
        "control": {name: asdict(measures) for name, measures in run.control.items()},
        "evaluations": run.evaluations,
        "distributions": {name: _trimmed(shares) for name, shares in run.distributions.items()},
        **_series_record(run.series),
    }
    # A line per key and per series, so that a difference can be read.
    lines = []
    for key, value in record.items():
        if key in ("series", "distributions", "control") and value:
            inner = ",\n".join(f"{json.dumps(name)}:{_compact(_rounded(part))}" for name, part in value.items())
            lines.append(f"{json.dumps(key)}:{{\n{inner}}}")
        else:
            lines.append(f"{json.dumps(key)}:{_compact(_rounded(value) if key in ROUNDED else value)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{" + ",\n".join(lines) + "}\n", encoding="utf-8")


def read(path: Path, last: float) -> Run | None:
    """A saved run; none if the file is something else.

    Args:
        last: final values over another share than the file's are taken from its bins.

    Raises:
        ValueError: if it is a saved run, but not complete.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        return None
    try:
        series = _series(record)
        final = {tag: _number(value) for tag, value in record["final"].items()}
        if not math.isclose(record["last"], last):
            end = max((s.steps[-1] for s in series.values() if len(s)), default=0.0)
            final = final_values(series, last_part(record["updates"], last, end))
        return Run(
            renewed(record["method"]),
            record["seed"],
            record["updates"],
            record["max_updates"],
            series,
            final,
            {
                name: Control(
                    values["first_feasible"],
                    values["overshoot"],
                    _number(values["oscillation"]),
                    _number(values["held"]),
                )
                for name, values in record["control"].items()
            },
            {name: _padded(shares) for name, shares in record["distributions"].items()},
            record["evaluations"],
            tuple(record["folders"]),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _series_record(series: Mapping[str, Series]) -> dict[str, Any]:
    """The middles of the bins once, and a row per series: null where it has no value, one number if it is constant."""
    steps = np.unique(np.concatenate([np.zeros(0), *(s.steps for s in series.values())]))
    rows: dict[str, Any] = {}
    for tag, s in series.items():
        if np.array_equal(s.steps, steps) and (s.values == s.values[0]).all():
            rows[tag] = float(s.values[0])
        else:
            known = dict(zip(s.steps, s.values, strict=True))
            rows[tag] = [float(known[step]) if step in known else None for step in steps]
    return {"steps": steps.tolist(), "series": rows}


def _series(record: Mapping[str, Any]) -> dict[str, Series]:
    steps = np.array(record["steps"], float)
    out = {}
    for tag, row in record["series"].items():
        values = np.array(row if isinstance(row, list) else [row] * len(steps), float)  # None becomes NaN
        known = ~np.isnan(values)
        out[tag] = Series(steps[known], values[known])
    return out


def _trimmed(shares: list[float]) -> list[float]:
    """Without the zeros at the end."""
    kept = max((n + 1 for n, share in enumerate(shares) if share), default=0)
    return shares[:kept]


def _padded(shares: list[float]) -> list[float]:
    return [*shares, *[0.0] * (BINS - len(shares))]


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _rounded(value: Any) -> Any:
    """Numbers to few digits; JSON has no NaN, null stands for it."""
    if isinstance(value, Mapping):
        return {key: _rounded(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(part) for part in value]
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        short = float(f"{value:.{DIGITS}g}")
        return int(short) if short.is_integer() else short
    return value


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)
