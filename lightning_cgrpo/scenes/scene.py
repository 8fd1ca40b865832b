"""A driving scene: map, route, ego history, agents, lights. Tensors are float64, in meters, seconds and radians.

Positions are in one right-handed x/y frame. An ego pose is the pose of the rear axle, an agent's pose that of the box
center. Names of the file (a lane's roadblock, an agent's type) are indices here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

AGENT_TYPES = ("vehicle", "pedestrian", "bicycle", "traffic_cone", "barrier", "czone_sign", "generic_object")
"""The first three move; a collision with another type costs half."""
MOVING_TYPES = 3


@dataclass(frozen=True)
class Points:
    """Polygons or polylines of different lengths.

    Args:
        xy: ``[N, V, 2]``. The first point (polygons) or last point (polylines) fills a row up, which adds only segments
            of length 0 and closes a polygon.
        counts: ``[N]`` int64, given points.
    """

    xy: Tensor
    counts: Tensor

    def __len__(self) -> int:
        return len(self.counts)

    def __getitem__(self, row: int) -> Tensor:
        """``[count, 2]``, the given points."""
        return self.xy[row, : int(self.counts[row])]

    @classmethod
    def polygons(cls, rows: Sequence[Any]) -> Points:
        """From arrays ``[v, 2]``; a polygon may repeat its first point at the end."""
        return cls._filled(rows, 0)

    @classmethod
    def polylines(cls, rows: Sequence[Any]) -> Points:
        return cls._filled(rows, -1)

    @classmethod
    def _filled(cls, rows: Sequence[Any], filler: int) -> Points:
        arrays = [np.asarray(row, dtype=np.float64).reshape(-1, 2) for row in rows]
        counts = [len(row) for row in arrays]
        xy = np.empty((len(arrays), max(counts, default=0) + (filler == 0), 2))  # a polygon's last edge leads back
        for filled, row, count in zip(xy, arrays, counts, strict=True):
            filled[:count] = row
            filled[count:] = row[filler]
        return cls(torch.from_numpy(xy), torch.tensor(counts, dtype=torch.int64))


@dataclass(frozen=True)
class Lanes:
    """L lanes and lane connectors.

    Args:
        ids: names.
        polygons: L polygons.
        centerlines: L polylines, in the direction of driving.
        connector: ``[L]`` bool, inside a junction.
        roadblock: ``[L]`` int64, row of the lane's roadblock.
        speed_limit: ``[L]`` m/s or NaN.
        incoming: rows of the lanes before each lane.
        outgoing: rows of the lanes after each lane.
    """

    ids: tuple[str, ...]
    polygons: Points
    centerlines: Points
    connector: Tensor
    roadblock: Tensor
    speed_limit: Tensor
    incoming: tuple[tuple[int, ...], ...]
    outgoing: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Roadblocks:
    """B roadblocks: neighboring lanes of one direction, or the connectors between two roadblocks.

    Args:
        ids: names.
        polygons: B polygons.
        connector: ``[B]`` bool.
        lanes: rows of each roadblock's lanes, in the file's order.
        incoming: rows of the roadblocks before each roadblock.
        outgoing: rows of the roadblocks after each roadblock.
    """

    ids: tuple[str, ...]
    polygons: Points
    connector: Tensor
    lanes: tuple[tuple[int, ...], ...]
    incoming: tuple[tuple[int, ...], ...]
    outgoing: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Areas:
    """Polygons with names."""

    ids: tuple[str, ...]
    polygons: Points


@dataclass(frozen=True)
class RoadMap:
    """Roads. Roadblocks without connectors, intersections, carparks and drivable areas can be driven on."""

    lanes: Lanes
    roadblocks: Roadblocks
    intersections: Areas
    carparks: Areas
    drivable_areas: Areas


@dataclass(frozen=True)
class EgoHistory:
    """H states, the last at t = 0.

    Args:
        times: ``[H]``.
        poses: ``[H, 3]`` x, y, yaw of the rear axle.
        velocities: ``[H, 2]`` in the ego's frame, x forward and y left.
        accelerations: ``[H, 2]`` in the ego's frame.
    """

    times: Tensor
    poses: Tensor
    velocities: Tensor
    accelerations: Tensor


@dataclass(frozen=True)
class Agents:
    """A agents, seen at T times.

    Args:
        tokens: names.
        types: ``[A]`` int64, rows of `AGENT_TYPES`.
        sizes: ``[A, 3]`` length, width, height.
        times: ``[T]`` ascending, all times at which an agent was seen.
        states: ``[A, T, 5]`` x, y, yaw, and velocity in the scene's frame; 0 where not seen.
        seen: ``[A, T]`` bool.
    """

    tokens: tuple[str, ...]
    types: Tensor
    sizes: Tensor
    times: Tensor
    states: Tensor
    seen: Tensor


@dataclass(frozen=True)
class Lights:
    """Traffic lights at T times.

    Args:
        times: ``[T]`` ascending.
        red: ``[T, L]`` bool, closed lane connectors.
        green: ``[T, L]`` bool.
    """

    times: Tensor
    red: Tensor
    green: Tensor


@dataclass(frozen=True)
class Scene:
    """A scene, from 1.5 s before to 4 s after t = 0.

    Args:
        name: of the scene.
        synthetic: made from another scene, without a human trajectory or human filter.
        map: roads; scenes of one place may share a map.
        route: rows of roadblocks, in order.
        ego: the last 1.5 s.
        human: ``[8, 3]`` the human's drive, x, y, yaw in the ego's frame at t = 0, every 0.5 s.
        agents: the others, from -1.5 to 4 s.
        lights: traffic lights.
        pdm_trajectory: ``[41, 3]`` the expert's plan in the scene's frame at 10 Hz, if given.
        centerline: ``[C, 2]`` of the route, if given.
        log: scenes of one log belong to one split.
        intent: the driving command.
        cameras: absolute paths of images by camera, one per state of the ego; empty if there are no images.
        previous: name of the scene 0.5 s before.
        follow_ups: names of the second-stage scenes.
        extra: other fields of the file.
    """

    name: str
    synthetic: bool
    map: RoadMap
    route: tuple[int, ...]
    ego: EgoHistory
    human: Tensor | None
    agents: Agents
    lights: Lights
    pdm_trajectory: Tensor | None = None
    centerline: Tensor | None = None
    log: str | None = None
    intent: str | None = None
    cameras: Mapping[str, Sequence[str]] = field(default_factory=dict)
    previous: str | None = None
    follow_ups: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
