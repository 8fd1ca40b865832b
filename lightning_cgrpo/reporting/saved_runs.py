"""Runs as small JSON files; docs/reporting.md lists the keys."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np

from lightning_cgrpo.output import write_whole
from lightning_cgrpo.reporting.histogram import BINS
from lightning_cgrpo.reporting.labels import slug
from lightning_cgrpo.reporting.runs import Run
from lightning_cgrpo.reporting.series import Array, Series
from lightning_cgrpo.reporting.summary import final_values, last_part

MARKER = "lightning_cgrpo run"
FORMAT = f"{MARKER} 1"
KINDS: dict[str, Any] = {
    "method": dict,
    "seed": (int, NoneType),
    "folders": list,
    "updates": int,
    "max_updates": (int, NoneType),
    "begins": int,
    "last": (int, float),
    "final": dict,
    "evaluations": dict,
    "faults": dict,
    "collapsed": (int, NoneType),
    "pooled": (int, float),
    "distributions": dict,
    "width": (int, float),
    "steps": list,
    "series": dict,
}
"""Keys and types of a saved run; `collapsed` may be missing."""


def write_all(labeled: Sequence[tuple[str, Run]], last: float, folder: Path) -> None:
    """Write runs into files named by label; a run replaces only its own file, of any label."""
    there = {path: run.identity for path in folder.glob("*.json") if (run := _known(path)) is not None}
    written = {run.identity for _, run in labeled}
    used = {path for path, of in there.items() if of not in written}
    for label, run in labeled:
        seed = "" if run.seed is None else f"_seed{run.seed}"
        names = (f"{slug(label)}{f'-{n}' if n > 1 else ''}{seed}.json" for n in count(1))
        path = next(folder / name for name in names if folder / name not in used)
        used.add(path)
        write(run, last, path)
    # The same run may have had another label, and so another file.
    for path in there.keys() - used:
        path.unlink()


def _known(path: Path) -> Run | None:
    try:
        return read(path, 1.0)
    except ValueError:
        return None


def write(run: Run, last: float, path: Path) -> None:
    """Write a run; `last` is the share in its final values."""
    trimmed = {name: _trimmed(shares) for name, shares in run.distributions.items()}
    values = {**vars(run), "last": last, "distributions": trimmed, **_series_record(run.series)}
    kept = {key: values[key] for key in KINDS if key != "collapsed" or run.collapsed is not None}
    # A line per key and per series, for readable differences.
    lines = []
    for key, value in {"format": FORMAT, **kept}.items():
        if key in ("series", "distributions") and value:
            inner = ",\n".join(f"{json.dumps(name)}:{_compact(part)}" for name, part in value.items())
            lines.append(f"{json.dumps(key)}:{{\n{inner}}}")
        else:
            lines.append(f"{json.dumps(key)}:{_compact(value)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, "{" + ",\n".join(lines) + "}\n")


def read(path: Path, last: float) -> Run | None:
    """Read a saved run; None for other files.

    Args:
        last: share for final values; if the file's differs, they are computed from bins.

    Raises:
        ValueError: if a saved run is malformed.
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
    record.setdefault("collapsed", None)
    for key, kinds in KINDS.items():
        if key not in record:
            raise ValueError(f"it has no '{key}'")
        _checked(key, record[key], kinds)
    return _run(record, last)


def _run(record: Mapping[str, Any], last: float) -> Run:
    series, final = _series(record), _numbers(record["final"])
    if not math.isclose(record["last"], last):
        end = max((s.steps[-1] for s in series.values()), default=0.0)
        final = final_values(series, last_part(record["updates"], last, end))
    same = ("method", "seed", "updates", "max_updates", "width", "pooled", "begins", "collapsed")
    return Run(
        **{key: record[key] for key in same},
        series=series,
        final=final,
        distributions={n: _padded(_checked(n, shares, list)) for n, shares in record["distributions"].items()},
        evaluations=_numbers(record["evaluations"]),
        folders=tuple(map(str, record["folders"])),
        faults={name: int(count) for name, count in _numbers(record["faults"]).items()},
    )


def _checked(key: str, value: Any, kinds: Any) -> Any:
    if not isinstance(value, kinds) or isinstance(value, bool):
        raise ValueError(f"its '{key}' is {str(value)[:40]!r}")
    return value


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(_checked(name, value, (int, float))) for name, value in values.items()}


def _series_record(series: Mapping[str, Series]) -> dict[str, Any]:
    """Middles of bins, and a row per series: None if missing, one number if constant."""
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
    steps = _array("steps", record["steps"])
    if np.isnan(steps).any():
        raise ValueError("its 'steps' have gaps")
    out = {}
    for tag, row in record["series"].items():
        values = _array(tag, row) if isinstance(row, list) else np.full(len(steps), _checked(tag, row, (int, float)))
        if len(values) != len(steps):
            raise ValueError(f"its '{tag}' has {len(values)} values at {len(steps)} steps")
        known = ~np.isnan(values)
        if known.any():
            out[tag] = Series(steps[known], values[known].astype(float))
    return out


def _array(key: str, row: list[Any]) -> Array:
    if not all(isinstance(value, (int, float, NoneType)) for value in row):
        raise ValueError(f"its '{key}' holds other things than numbers")
    return np.array(row, float)


def _trimmed(shares: list[float]) -> list[float]:
    kept = max((n + 1 for n, share in enumerate(shares) if share), default=0)
    return shares[:kept]


def _padded(shares: list[float]) -> list[float]:
    if len(shares) > BINS or not all(isinstance(share, (int, float)) for share in shares):
        raise ValueError("its distributions aren't shares by bin")
    return [*map(float, shares), *[0.0] * (BINS - len(shares))]


def _compact(value: Any) -> str:
    return json.dumps(_short(value), separators=(",", ":"))


def _short(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _short(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_short(part) for part in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
