"""A driving scene: map, route, ego history, agents, lights. Tensors are float64, in meters, seconds and radians.

All positions are in one right-handed x/y frame of the scene. Ego poses are those of the rear axle, agents' of the box's
center. What the file says by name (a lane's roadblock, an agent's type) is an index here; the names are kept to write
the file again, see `scene_file`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

AGENT_TYPES = ("vehicle", "pedestrian", "bicycle", "traffic_cone", "barrier", "czone_sign", "generic_object")
"""The first three move by themselves; hitting one of the others costs half."""
MOVING_TYPES = 3


@dataclass(frozen=True)
class Points:
    """Polygons or polylines of different lengths.

    Args:
        xy: ``[N, V, 2]``. Rows are filled up with their first point (polygons) or last point (polylines), so that the
            segments between neighbors are those of the closed polygon or of the line, and some of length 0.
        counts: ``[N]`` int64, of points that were given.
    """

    xy: Tensor
    counts: Tensor

    def __len__(self) -> int:
        return len(self.counts)

    def __getitem__(self, row: int) -> Tensor:
        """``[count, 2]``, the points that were given."""
        return self.xy[row, : int(self.counts[row])]

    @classmethod
    def polygons(cls, rows: Sequence[Any]) -> Points:
        """Of lists or tensors ``[v, 2]``; a polygon that repeats its first point at its end is the same polygon."""
        return cls._filled(rows, 0)

    @classmethod
    def polylines(cls, rows: Sequence[Any]) -> Points:
        return cls._filled(rows, -1)

    @classmethod
    def _filled(cls, rows: Sequence[Any], filler: int) -> Points:
        tensors = [torch.as_tensor(row, dtype=torch.float64).reshape(-1, 2) for row in rows]
        width = max((len(row) for row in tensors), default=0) + (filler == 0)  # a polygon's last edge leads back
        filled = [torch.cat([row, row[filler].expand(width - len(row), 2)]) for row in tensors]
        xy = torch.stack(filled) if filled else torch.zeros(0, width, 2, dtype=torch.float64)
        return cls(xy, torch.tensor([len(row) for row in tensors], dtype=torch.int64))


@dataclass(frozen=True)
class Lanes:
    """L lanes and lane connectors.

    Args:
        ids: names.
        polygons: L polygons.
        centerlines: L polylines, in the direction of driving.
        connector: ``[L]`` bool, inside of a junction.
        roadblock: ``[L]`` int64, the row of the roadblock that the lane belongs to.
        speed_limit: ``[L]`` m/s, NaN where there is none.
        incoming: rows of the lanes before, for each.
        outgoing: rows of the lanes after, for each.
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
    """B roadblocks: neighboring lanes of one direction, or (connectors) what leads from one to another.

    Args:
        ids: names.
        polygons: B polygons.
        connector: ``[B]`` bool.
        lanes: rows of the lanes in each, in the file's order.
        incoming: rows of the roadblocks before, for each.
        outgoing: rows of the roadblocks after, for each.
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
    """What can be driven on: roadblocks that are no connectors, intersections, carparks and drivable areas."""

    lanes: Lanes
    roadblocks: Roadblocks
    intersections: Areas
    carparks: Areas
    drivable_areas: Areas


@dataclass(frozen=True)
class EgoHistory:
    """H states up to t = 0, the last one.

    Args:
        times: ``[H]``.
        poses: ``[H, 3]`` x, y, yaw of the rear axle.
        velocities: ``[H, 2]`` in the ego's frame, x forward and y left.
        accelerations: ``[H, 2]``, alike.
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
        types: ``[A]`` int64, of `AGENT_TYPES`.
        sizes: ``[A, 3]`` length, width, height.
        times: ``[T]`` ascending, all at which any agent was seen.
        states: ``[A, T, 5]`` x, y, yaw, and velocity in the scene's frame; 0 where it was not seen.
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
        red: ``[T, L]`` bool, the lane connectors that are closed.
        green: ``[T, L]`` bool.
    """

    times: Tensor
    red: Tensor
    green: Tensor


@dataclass(frozen=True)
class Scene:
    """One scene.

    Args:
        name: of the scene.
        synthetic: made from another scene: there is no human trajectory, and no human filter.
        map: roads. Scenes of one place may share it.
        route: rows of roadblocks, in order.
        ego: the last 1.5 s.
        human: ``[8, 3]`` what the human drove, x, y, yaw in the ego's frame at t = 0, at 0.5 to 4 s.
        agents: the others, from -1.5 to 4 s.
        lights: traffic lights.
        pdm_trajectory: ``[41, 3]`` the expert's plan in the scene's frame at 10 Hz, if it is given.
        centerline: ``[C, 2]`` the route's, if it is given.
        log: scenes of one log belong to one split.
        intent: the driving command.
        extra: what else the file says (cameras, previous, follow_ups), as it says it; with absolute paths of images.
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
    extra: dict[str, Any] = field(default_factory=dict)
