"""Files of candidate trajectories; a malformed trajectory does not affect the others."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from driving_scenes.json_fields import Field, SceneError, load_json

SAMPLINGS = {8: 0.5, 40: 0.1}
"""Seconds between poses, by the number of poses in 4 s; the first pose is one interval after t = 0."""
TOP_SPEED = 50.0
"""m/s (180 km/h) between poses; a faster trajectory teleports."""


@dataclass(frozen=True)
class Candidate:
    """A trajectory to score."""

    tag: str | None
    poses: Tensor | None  # [P, 3] x, y, yaw in the ego's frame, every `interval` seconds; None if malformed
    error: str | None = None  # a teleporting trajectory has an error, and poses that are scored
    interval: float = 0.5


def read_candidates(path: str | Path) -> list[Candidate]:
    """Read a trajectory file.

    Raises:
        SceneError: not JSON, or the list `trajectories` is missing or empty.
    """
    top = Field(load_json(path), str(path))
    candidates = [_read_candidate(item) for item in top["trajectories"]]
    if not candidates:
        raise top["trajectories"].wrong("at least one trajectory")
    return candidates


def read_table(path: str | Path) -> dict[str, list[Candidate]]:
    """Candidates by token, of a CSV file with a row ``token,x,y,heading`` for each pose, in order, and perhaps `tag`.

    Raises:
        SceneError: the file has other columns.
    """
    poses: dict[tuple[str, str | None], list[list[Any]]] = {}
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            for row in csv.DictReader(file):
                pose = [float(row[name]) for name in ("x", "y", "heading")]
                poses.setdefault((row["token"], row.get("tag")), []).append(pose)
    except (OSError, KeyError, TypeError, ValueError) as error:
        reason = f"no column {error}" if isinstance(error, KeyError) else error
        raise SceneError(f"{path}: Expected rows token,x,y,heading of poses, but got {reason}.") from None
    candidates: dict[str, list[Candidate]] = {}
    for (token, tag), rows in poses.items():
        item = Field({"tag": tag, "poses": rows}, f"{path}: {token}")
        candidates.setdefault(token, []).append(_read_candidate(item))
    return candidates


def _read_candidate(item: Field) -> Candidate:
    tag = item.value.get("tag") if isinstance(item.value, dict) else None
    if tag is not None:
        tag = str(tag)
    try:
        poses = _read_poses(item["poses"])
    except SceneError as error:
        return Candidate(tag, None, str(error).removeprefix(f"{item.file}: "))
    interval = SAMPLINGS[len(poses)]
    return Candidate(tag, poses, fault_of(poses, interval), interval)


def fault_of(poses: Tensor, interval: float) -> str | None:
    """Error message if poses ``[P, 3]`` exceed `TOP_SPEED` or a heading exceeds 2 pi (degrees), else None."""
    path = torch.cat([poses.new_zeros(1, 2), poses[:, :2]])
    speeds = path.diff(dim=0).norm(dim=1) / interval
    fastest = int(speeds.argmax())
    if speeds[fastest] > TOP_SPEED:
        return (
            f"poses[{fastest}]: Expected at most {TOP_SPEED:g} m/s from the pose before, but got "
            f"{float(speeds[fastest]):.4g} m/s: it teleports."
        )
    largest = float(poses[:, 2].abs().max())
    if not largest <= 2 * math.pi:
        return f"It has a heading of {largest:.4g}: headings are in radians."
    return None


def _read_poses(value: Field) -> Tensor:
    poses: Sequence[Any] = list(value)
    if len(poses) not in SAMPLINGS:
        samplings = " or ".join(f"{count} poses every {seconds:g} s" for count, seconds in SAMPLINGS.items())
        raise value.wrong(samplings, str(len(poses)))
    return torch.stack([pose.tensor(3) for pose in poses])
