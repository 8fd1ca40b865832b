"""Differences of two runs, bit for bit: in their last checkpoints, and in what they logged."""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from lightning_cgrpo.run.checkpoints.header import SHARDED_LAST
from lightning_cgrpo.run.manifest import KEY
from lightning_cgrpo.settings.effects import Effect, effect_of

UNTOLD = ("time/", "throughput/")
"""Beginnings of tags of durations."""


def differences(run: Path, whole: Path) -> Iterator[str]:
    yield from different(final(run), final(whole), "checkpoint")
    expected, logged = logs(whole / "runs/run/version_0"), {}
    for part in sorted(run.glob("runs/run/version_*")):
        for key, value in logs(part).items():
            if logged.setdefault(key, value) != value:
                yield f"{key} logged as {logged[key]} and {value}"
    for key in sorted(expected.keys() | logged.keys()):
        if expected.get(key) != logged.get(key):
            yield f"{key} logged as {logged.get(key)}, not {expected.get(key)}"


def final(run: Path) -> dict[str, Any]:
    """The last checkpoint, without the state of callbacks that remember paths, and the run's place and ancestors."""
    path = max(run.glob("runs/run/version_*/checkpoints/last.ckpt"), key=lambda file: file.stat().st_mtime)
    checkpoint = read(path)
    callbacks = checkpoint["callbacks"]
    checkpoint["callbacks"] = {name: state for name, state in callbacks.items() if not name.startswith("Checkpoints")}
    for name in ("project", "lineage"):  # a resumed run descends from the run that it continues
        checkpoint.get(KEY, {}).pop(name, None)
    settings = checkpoint.get(KEY, {}).get("settings") or {}  # none of runs from Python
    for key in [key for key in settings if effect_of(key) == Effect.PLACE]:  # other numbers of nodes are compared, too
        settings.pop(key)
    return checkpoint


def read(path: Path) -> dict[str, Any]:
    checkpoint: dict[str, Any] = torch.load(path / SHARDED_LAST if path.is_dir() else path, weights_only=True)
    if path.is_dir():
        with tempfile.NamedTemporaryFile() as file:
            dcp_to_torch_save(path, file.name)
            checkpoint |= torch.load(file.name, weights_only=True)
    return checkpoint


def different(ours: Any, theirs: Any, where: str) -> Iterator[str]:
    if type(ours) is not type(theirs):
        yield f"{where}: {type(ours).__name__}, not {type(theirs).__name__}"
    elif isinstance(ours, torch.Tensor):
        if ours.dtype != theirs.dtype or not torch.equal(ours, theirs):
            yield f"{where}: other numbers"
    elif isinstance(ours, dict):
        for key in ours.keys() | theirs.keys():
            if key in ours and key in theirs:
                yield from different(ours[key], theirs[key], f"{where}.{key}")
            else:
                yield f"{where}.{key}: in one only"
    elif isinstance(ours, (list, tuple)) and len(ours) == len(theirs):
        for number, pair in enumerate(zip(ours, theirs, strict=True)):
            yield from different(*pair, f"{where}[{number}]")
    elif ours != theirs:
        yield f"{where}: {ours}, not {theirs}"


def logs(version: Path) -> dict[tuple[int, str], str]:
    """Logged values as text, by update and tag, without durations."""
    file = version / "metrics.csv"
    if not file.exists():
        return {}
    logged = {}
    with file.open() as lines:
        for row in csv.DictReader(lines):
            update = int(row.pop("step"))
            for tag, value in row.items():
                if value and not tag.startswith(UNTOLD):
                    logged[update, tag] = value
    return logged
