"""Files of candidate trajectories; a malformed trajectory does not affect the others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lightning_cgrpo.scenes.json_fields import Field, SceneError, load_json

POSES = 8
INTERVAL = 0.5
"""Seconds between poses; the first pose is one interval after t = 0."""
TOP_SPEED = 50.0
"""m/s (180 km/h) between poses; a faster trajectory teleports."""


@dataclass(frozen=True)
class Candidate:
    """A trajectory to score."""

    tag: str | None
    poses: Tensor | None  # [8, 3] x, y, yaw in the ego's frame, at 0.5 to 4 s; None if malformed
    error: str | None = None  # a teleporting trajectory has an error, and poses that are scored


def read_candidates(path: str | Path) -> list[Candidate]:
    """Read a trajectory file.

    Raises:
        SceneError: not JSON, or the list `trajectories` is missing or empty.
    """
    top = Field(load_json(path), str(path))
    candidates = [_candidate(item) for item in top["trajectories"]]
    if not candidates:
        raise top["trajectories"].wrong("at least one trajectory")
    return candidates


def _candidate(item: Field) -> Candidate:
    tag = item.value.get("tag") if isinstance(item.value, dict) else None
    tag = tag if tag is None else str(tag)
    try:
        poses = _poses(item["poses"])
    except SceneError as error:
        return Candidate(tag, None, str(error).removeprefix(f"{item.file}: "))
    return Candidate(tag, poses, _error(poses))


def _error(poses: Tensor) -> str | None:
    """Error message if poses ``[8, 3]`` exceed `TOP_SPEED` or a heading exceeds 2 pi (degrees), else None."""
    path = torch.cat([poses.new_zeros(1, 2), poses[:, :2]])
    speeds = path.diff(dim=0).norm(dim=1) / INTERVAL
    fastest = int(speeds.argmax())
    if speeds[fastest] > TOP_SPEED:
        return (
            f"poses[{fastest}]: Expected at most {TOP_SPEED:g} m/s from the pose before, but got "
            f"{float(speeds[fastest]):.4g} m/s: it teleports."
        )
    largest = float(poses[:, 2].abs().max())
    return None if largest <= 2 * math.pi else f"It has a heading of {largest:.4g}: headings are in radians."


def _poses(value: Field) -> Tensor:
    poses: Sequence[Any] = list(value)
    if len(poses) != POSES:
        raise value.wrong(f"{POSES} poses, at {INTERVAL:g} to {POSES * INTERVAL:g} s", str(len(poses)))
    return torch.stack([pose.tensor(3) for pose in poses])
