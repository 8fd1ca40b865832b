"""A recorded drive of Argoverse 2, interpolated between sweeps.

Boxes are placed by the ego's yaw, without pitch and roll, which moves a box 100 m away by up to 15 cm.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from driving_scenes.json_fields import SceneError
from lightning_cgrpo.core.errors import UserError, install_command

Array = npt.NDArray[np.float64]

POSES = "city_SE3_egovehicle.feather"
BOXES = ("annotations.feather", "annotations_with_ego.feather")
MAPS = "map/log_map_archive_*.json"

EGO_WINDOW = 0.4
"""Seconds before and after; noise in shorter windows exceeds the bounds of comfort."""
TRACK_WINDOW = 0.25
STANDING = 0.15
"""m/s; slower tracks stand."""

EGO = "EGO_VEHICLE"
_CATEGORIES = {
    "vehicle": "REGULAR_VEHICLE LARGE_VEHICLE BUS BOX_TRUCK TRUCK VEHICULAR_TRAILER TRUCK_CAB SCHOOL_BUS "
    "ARTICULATED_BUS RAILED_VEHICLE",
    "pedestrian": "PEDESTRIAN STROLLER WHEELCHAIR OFFICIAL_SIGNALER",
    "bicycle": "BICYCLE BICYCLIST MOTORCYCLE MOTORCYCLIST WHEELED_DEVICE WHEELED_RIDER",
    "traffic_cone": "CONSTRUCTION_CONE CONSTRUCTION_BARREL",
    "generic_object": "BOLLARD SIGN STOP_SIGN MOBILE_PEDESTRIAN_CROSSING_SIGN MESSAGE_BOARD_TRAILER "
    "TRAFFIC_LIGHT_TRAILER ANIMAL DOG UNKNOWN",
}
TYPES = {name: kind for kind, names in _CATEGORIES.items() for name in names.split()}
"""Agent type by Argoverse's category."""


@dataclass(frozen=True)
class TimedPoses:
    """Poses over time."""

    times: Array  # [N] seconds since the log's first sweep, ascending
    poses: Array  # [N, 3] x, y, unwrapped yaw

    def at(self, times: Array) -> Array:
        """Poses ``[..., 3]``, yaw unwrapped; outside the known times, the first or last pose."""
        return np.stack([np.interp(times, self.times, column) for column in self.poses.T], -1)

    def covers(self, times: Array, slack: float = 1e-3) -> npt.NDArray[np.bool_]:
        return np.asarray((times >= self.times[0] - slack) & (times <= self.times[-1] + slack))

    def velocities(self, times: Array) -> Array:
        """A track's velocities ``[..., 2]`` in the map's frame, by differences over 0.5 s; 0 below `STANDING`."""
        low = np.maximum(times - TRACK_WINDOW, self.times[0])
        high = np.minimum(times + TRACK_WINDOW, self.times[-1])
        moved = (self.at(high) - self.at(low))[..., :2]
        velocities = moved / np.maximum(high - low, 1e-9)[..., None]
        return np.where(np.linalg.norm(velocities, axis=-1, keepdims=True) < STANDING, 0.0, velocities)

    def dynamics(self, times: Array) -> tuple[Array, Array]:
        """The ego's velocities and accelerations ``[..., 2]`` in its frame, by parabolas."""
        middle = np.clip(times, self.times[0] + EGO_WINDOW, self.times[-1] - EGO_WINDOW)
        before, here, after = (self.at(middle + offset)[..., :2] for offset in (-EGO_WINDOW, 0, EGO_WINDOW))
        acceleration = (after - 2 * here + before) / EGO_WINDOW**2
        velocity = (after - before) / (2 * EGO_WINDOW) + acceleration * (times - middle)[..., None]
        yaw = self.at(times)[..., 2]
        return rotate(velocity, -yaw), rotate(acceleration, -yaw)


@dataclass(frozen=True)
class Track:
    """An agent."""

    token: str
    type: str  # of AGENT_TYPES
    size: tuple[float, ...]  # length, width, height of the first box
    motion: TimedPoses  # of the box center


@dataclass(frozen=True)
class Log:
    """A recorded drive."""

    ego: TimedPoses  # of the rear axle, the origin of Argoverse's ego frame
    tracks: tuple[Track, ...]  # sorted by token
    end: float  # time of the last sweep; the first sweep is at 0


def rotate(vectors: Array, yaw: Array) -> Array:
    """Turn vectors ``[..., 2]`` counterclockwise."""
    cos, sin = np.cos(yaw), np.sin(yaw)
    x, y = vectors[..., 0], vectors[..., 1]
    return np.stack([cos * x - sin * y, sin * x + cos * y], -1)


def wrapped(angle: Array | float) -> Array:
    """Wrap to [-π, π)."""
    return np.asarray((angle + np.pi) % (2 * np.pi) - np.pi)


def relative(poses: Array, origin: Array) -> Array:
    """Poses ``[N, 3]`` in the frame of the pose `origin`."""
    moved = poses - origin
    return np.column_stack([rotate(moved[:, :2], -origin[2]), wrapped(moved[:, 2])])


def read_log(folder: Path) -> Log:
    """Read the poses and boxes of a log.

    Raises:
        SceneError: a file or column is missing, or can't be read.
        UserError: pyarrow isn't installed.
    """
    boxes_path = boxes_file(folder)
    boxes = _read(boxes_path, ["track_uuid", "category", "length_m", "width_m", "height_m"])
    ego = _read(folder / POSES, [])
    start = boxes["timestamp_ns"].min()
    order = np.argsort(ego["timestamp_ns"], kind="stable")
    motion = TimedPoses(
        (ego["timestamp_ns"][order] - start) / 1e9,
        np.column_stack([ego["tx_m"][order], ego["ty_m"][order], np.unwrap(_yaw(ego)[order])]),
    )
    times = (boxes["timestamp_ns"] - start) / 1e9
    at = motion.at(times)
    centers = at[:, :2] + rotate(np.column_stack([boxes["tx_m"], boxes["ty_m"]]), at[:, 2])
    yaws = at[:, 2] + _yaw(boxes)
    sizes = np.column_stack([boxes["length_m"], boxes["width_m"], boxes["height_m"]])
    tokens, owner = np.unique(boxes["track_uuid"].astype(str), return_inverse=True)
    tracks = []
    order = np.lexsort([times, owner])
    for token, rows in zip(tokens, np.split(order, np.cumsum(np.bincount(owner))[:-1]), strict=True):
        category = str(boxes["category"][rows[0]])
        if category == EGO:
            continue
        if category not in TYPES:
            raise SceneError(f"{boxes_path}: Expected a category of Argoverse 2, but got '{category}'.")
        poses = np.column_stack([centers[rows], np.unwrap(yaws[rows])])
        tracks.append(
            Track(str(token), TYPES[category], tuple(sizes[rows[0]].tolist()), TimedPoses(times[rows], poses))
        )
    return Log(motion, tuple(tracks), float(times.max()))


def boxes_file(folder: Path) -> Path:
    """Raises:
    SceneError: the log has no file of boxes.
    """
    for name in BOXES:
        if (folder / name).is_file():
            return folder / name
    raise SceneError(f"{folder}: Expected {' or '.join(BOXES)}, but got neither.")


def last_sweep(folder: Path) -> float:
    """Seconds from the first sweep to the last."""
    times = _read(boxes_file(folder), None)["timestamp_ns"]
    return float(times.max() - times.min()) / 1e9


def _yaw(table: dict[str, Any]) -> Array:
    w, x, y, z = (table[name] for name in ("qw", "qx", "qy", "qz"))
    yaw: Array = np.arctan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))
    return yaw


def _read(path: Path, columns: list[str] | None) -> dict[str, Any]:
    """Arrays by column: time; unless ``columns`` is None, also pose and ``columns``."""
    try:
        from pyarrow import ArrowException, feather  # an extra
    except ImportError:
        raise UserError(
            f"Expected pyarrow, which reads Argoverse 2, to be installed, try {install_command('data')}."
        ) from None
    pose = ["qw", "qx", "qy", "qz", "tx_m", "ty_m", "tz_m"]
    names = ["timestamp_ns", *(() if columns is None else (*pose, *columns))]
    try:
        table = feather.read_table(path, columns=names)
    except (OSError, ArrowException) as error:
        raise SceneError(f"{path}: Expected a feather file with {', '.join(names)}: {error}.") from None
    if len(table) == 0:
        raise SceneError(f"{path}: Expected at least one row, but got none.")
    return {name: table[name].to_numpy() for name in names}
