"""Runs as small JSON files, so that a report can be completed later on. docs/reporting.md lists the keys."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np

from lightning_cgrpo.cli.method import key_of
from lightning_cgrpo.reporting.histogram import BINS
from lightning_cgrpo.reporting.labels import slug
from lightning_cgrpo.reporting.runs import Identity, Run
from lightning_cgrpo.reporting.series import Array, Series
from lightning_cgrpo.reporting.summary import final_values, last_part

MARKER = "lightning_cgrpo run"
FORMAT = f"{MARKER} 1"


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


def identity(run: Run) -> Identity:
    """A run's."""
    return key_of(run.method), run.folders[0] if run.seed is None and run.folders else run.seed


def _known(path: Path) -> Run | None:
    try:
        return read(path, 1.0)
    except ValueError:
        return None


def write(run: Run, last: float, path: Path) -> None:
    """Write a run, at once or not at all; `last` is the share of updates that its final values are over."""
    record = {
        "format": FORMAT,
        "method": run.method,
        "seed": run.seed,
        "folders": list(run.folders),
        "updates": run.updates,
        "max_updates": run.max_updates,
        "begins": run.begins,
        "last": last,
        "final": run.final,
        "evaluations": run.evaluations,
        "faults": run.faults,
        **({} if run.collapsed is None else {"collapsed": run.collapsed}),
        "pooled": run.pooled,
        "distributions": {name: _trimmed(shares) for name, shares in run.distributions.items()},
        "width": run.width,
        **_series_record(run.series),
    }
    # A line per key and per series, so that a difference can be read.
    lines = []
    for key, value in record.items():
        if key in ("series", "distributions") and value:
            inner = ",\n".join(f"{json.dumps(name)}:{_compact(part)}" for name, part in value.items())
            lines.append(f"{json.dumps(key)}:{{\n{inner}}}")
        else:
            lines.append(f"{json.dumps(key)}:{_compact(value)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_text("{" + ",\n".join(lines) + "}\n", encoding="utf-8")
    os.replace(unfinished, path)


def read(path: Path, last: float) -> Run | None:
    """A saved run; none if the file is something else.

    Args:
        last: final values over another share than the file's are taken from its bins.

    Raises:
        ValueError: if it is a saved run, but can't be read as one.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    if MARKER not in text[:200]:
        return None
    record = json.loads(text)
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise ValueError(f"its format isn't '{FORMAT}'")
    try:
        return _run(record, last)
    except KeyError as error:
        raise ValueError(f"it has no {error}") from error


def _run(record: Mapping[str, Any], last: float) -> Run:
    updates, series = _checked(record, "updates", int), _series(record)
    final = _numbers(record, "final")
    own = _checked(record, "last", (int, float))
    if not math.isclose(own, last):
        end = max((s.steps[-1] for s in series.values()), default=0.0)
        final = final_values(series, last_part(updates, last, end))
    distributions = _checked(record, "distributions", dict)
    return Run(
        _checked(record, "method", dict),
        _checked(record, "seed", (int, NoneType)),
        updates,
        _checked(record, "max_updates", (int, NoneType)),
        series,
        final,
        {name: _padded(_checked(distributions, name, list)) for name in distributions},
        _numbers(record, "evaluations"),
        tuple(str(folder) for folder in _checked(record, "folders", list)),
        float(_checked(record, "width", (int, float))),
        float(_checked(record, "pooled", (int, float))),
        _checked(record, "begins", int),
        {name: int(count) for name, count in _numbers(record, "faults").items()},
        _checked(record, "collapsed", int) if "collapsed" in record else None,
    )


def _checked(record: Mapping[str, Any], key: str, kinds: Any) -> Any:
    value = record[key]
    if not isinstance(value, kinds) or isinstance(value, bool):
        raise ValueError(f"its '{key}' is {str(value)[:40]!r}")
    return value


def _numbers(record: Mapping[str, Any], key: str) -> dict[str, float]:
    values = _checked(record, key, dict)
    return {name: float(_checked(values, name, (int, float))) for name in values}


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
    steps = _array(record, "steps")
    if np.isnan(steps).any():
        raise ValueError("its 'steps' have gaps")
    rows = _checked(record, "series", dict)
    out = {}
    for tag, row in rows.items():
        values = _array(rows, tag) if isinstance(row, list) else np.full(len(steps), _checked(rows, tag, (int, float)))
        if len(values) != len(steps):
            raise ValueError(f"its '{tag}' has {len(values)} values at {len(steps)} steps")
        known = ~np.isnan(values)
        if known.any():
            out[tag] = Series(steps[known], values[known].astype(float))
    return out


def _array(record: Mapping[str, Any], key: str) -> Array:
    """A list of numbers, where null becomes NaN."""
    row = _checked(record, key, list)
    if not all(isinstance(value, (int, float, NoneType)) for value in row):
        raise ValueError(f"its '{key}' holds other things than numbers")
    return np.array(row, float)


def _trimmed(shares: list[float]) -> list[float]:
    """Without the zeros at the end."""
    kept = max((n + 1 for n, share in enumerate(shares) if share), default=0)
    return shares[:kept]


def _padded(shares: list[float]) -> list[float]:
    if len(shares) > BINS or not all(isinstance(share, (int, float)) for share in shares):
        raise ValueError("its distributions aren't shares by bin")
    return [*map(float, shares), *[0.0] * (BINS - len(shares))]


def _compact(value: Any) -> str:
    return json.dumps(_short(value), separators=(",", ":"))


def _short(value: Any) -> Any:
    """Numbers as short as they can be: 1 and not 1.0."""
    if isinstance(value, Mapping):
        return {key: _short(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_short(part) for part in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
