"""A driving scene. Tensors are float64, in meters, seconds and radians.

Positions are in one right-handed x/y frame. An ego pose is at the rear axle, an agent's pose at the box center. Indices
replace the file's names (a lane's roadblock, an agent's type).
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
    """N polygons or polylines; the first (polygons) or last point (polylines) fills up a row.

    A point is inside a polygon if it is inside an odd number of its rings.
    """

    xy: Tensor  # [N, V, 2]
    counts: Tensor  # [N] int64, points without filling
    rings: tuple[tuple[int, Tensor], ...] = ()  # row and ring [v, 2] of each hole, or part beside the first ring

    def __len__(self) -> int:
        return len(self.counts)

    def __getitem__(self, row: int) -> Tensor:
        """Row's points ``[count, 2]``, without filling."""
        return self.xy[row, : int(self.counts[row])]

    def kept(self, mask: Tensor) -> Points:
        """The rows of ``mask [N]`` bool."""
        rows = (mask.cumsum(0) - 1).tolist()
        rings = tuple((rows[row], ring) for row, ring in self.rings if mask[row])
        return Points(self.xy[mask], self.counts[mask], rings)

    def drawn(self) -> Points:
        """Polygons as single rings, for drawing: seams, drawn forth and back, lead to the further rings."""
        if not self.rings:
            return self
        drawn = [self[row] for row in range(len(self))]
        for row, ring in self.rings:
            # Holes turn against the first ring, because a renderer may fill what is surrounded twice in one direction.
            if _signed_area(ring) * _signed_area(self[row]) >= 0:
                ring = ring.flip(0)
            drawn[row] = torch.cat([drawn[row], drawn[row][:1], ring, ring[:1]])
        return Points.polygons(drawn)

    @classmethod
    def polygons(cls, rows: Sequence[Any], further: Sequence[Sequence[Any]] = ()) -> Points:
        """From arrays ``[v, 2]``; polygons may repeat their first point. `further` are each row's other rings."""
        filled = cls._filled(rows, 0)
        rings = []
        for row, of_row in enumerate(further):
            for ring in of_row:
                rings.append((row, torch.as_tensor(ring)))
        return cls(filled.xy, filled.counts, tuple(rings))

    @classmethod
    def polylines(cls, rows: Sequence[Any]) -> Points:
        return cls._filled(rows, -1)

    @classmethod
    def _filled(cls, rows: Sequence[Any], filler: int) -> Points:
        arrays = [np.asarray(row, dtype=np.float64).reshape(-1, 2) for row in rows]
        counts = [len(row) for row in arrays]
        longest = max(counts, default=0)
        if filler == 0:
            longest += 1  # a polygon's last edge leads back
        xy = np.empty((len(arrays), longest, 2))
        for filled, row, count in zip(xy, arrays, counts, strict=True):
            filled[:count] = row
            filled[count:] = row[filler]
        return cls(torch.from_numpy(xy), torch.tensor(counts, dtype=torch.int64))


def _signed_area(ring: Tensor) -> Tensor:
    """Signed area of a ring ``[v, 2]``, twice."""
    x, y = ring.unbind(1)
    return (x * y.roll(-1) - y * x.roll(-1)).sum()


@dataclass(frozen=True)
class Lanes:
    """L lanes and lane connectors."""

    ids: tuple[str, ...]
    polygons: Points
    centerlines: Points  # in the direction of driving
    connector: Tensor  # [L] bool, inside a junction
    roadblock: Tensor  # [L] int64, row of the lane's roadblock
    speed_limit: Tensor  # [L] m/s or NaN
    incoming: tuple[tuple[int, ...], ...]  # rows of the lanes before each lane
    outgoing: tuple[tuple[int, ...], ...]  # rows of the lanes after each lane


@dataclass(frozen=True)
class Roadblocks:
    """B roadblocks: neighboring lanes of one direction, or connectors between two roadblocks."""

    ids: tuple[str, ...]
    polygons: Points
    connector: Tensor  # [B] bool
    lanes: tuple[tuple[int, ...], ...]  # rows of each roadblock's lanes, in the file's order
    incoming: tuple[tuple[int, ...], ...]  # rows of the roadblocks before each roadblock
    outgoing: tuple[tuple[int, ...], ...]  # rows of the roadblocks after each roadblock


@dataclass(frozen=True)
class Areas:
    """Polygons with names."""

    ids: tuple[str, ...]
    polygons: Points


@dataclass(frozen=True)
class RoadMap:
    """Roads. Roadblocks (but not connectors), intersections, carparks and drivable areas are drivable."""

    lanes: Lanes
    roadblocks: Roadblocks
    intersections: Areas
    carparks: Areas
    drivable_areas: Areas


@dataclass(frozen=True)
class EgoHistory:
    """H states, the last at t = 0; velocities and accelerations in the ego's frame."""

    times: Tensor  # [H]
    poses: Tensor  # [H, 3] x, y, yaw of the rear axle
    velocities: Tensor  # [H, 2] x forward, y left
    accelerations: Tensor  # [H, 2]


@dataclass(frozen=True)
class Agents:
    """A agents at T times."""

    tokens: tuple[str, ...]
    types: Tensor  # [A] int64, rows of AGENT_TYPES
    sizes: Tensor  # [A, 3] length, width, height
    times: Tensor  # [T] ascending, all times at which an agent was seen
    states: Tensor  # [A, T, 5] x, y, yaw, and velocity in the scene's frame; 0 where not seen
    seen: Tensor  # [A, T] bool


@dataclass(frozen=True)
class Lights:
    """Traffic lights of the map's L lanes at T times; not red and not green: unknown."""

    times: Tensor  # [T] ascending
    red: Tensor  # [T, L] bool
    green: Tensor  # [T, L] bool


@dataclass(frozen=True)
class Scene:
    """A scene, from 1.5 s before to 4 s after t = 0."""

    name: str
    synthetic: bool  # made from another scene, without a human trajectory or human filter
    map: RoadMap  # scenes of one place may share a map
    route: tuple[int, ...]  # rows of roadblocks, in order
    ego: EgoHistory
    human: Tensor | None  # [8, 3] the human's drive, x, y, yaw in the ego's frame at t = 0, every 0.5 s
    agents: Agents
    lights: Lights
    pdm_trajectory: Tensor | None = None  # [41, 3] the expert's plan in the scene's frame at 10 Hz
    centerline: Tensor | None = None  # [C, 2] of the route
    log: str | None = None  # scenes of one log belong to one split
    intent: str | None = None  # the driving command
    cameras: Mapping[str, Sequence[str]] = field(default_factory=dict)  # absolute paths of images, one per ego state
    previous: str | None = None  # name of the scene 0.5 s before
    follow_ups: tuple[str, ...] = ()  # names of the second-stage scenes
    extra: Mapping[str, Any] = field(default_factory=dict)  # other fields of the file
