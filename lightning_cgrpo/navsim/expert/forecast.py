"""What the planner expects of the others: all keep their velocity, along their heading, and lights stay as they are.

See docs/navsim_score.md §12; officially pdm_observation.py and pdm_object_manager.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import shapely
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lightning_cgrpo.navsim.batch.surfaces import EARLY, held
from lightning_cgrpo.navsim.geometry.path import Array
from lightning_cgrpo.navsim.geometry.shapes import Shapes, boxes
from lightning_cgrpo.navsim.route.road import Road
from lightning_cgrpo.navsim.simulation.timing import DT, STEPS
from lightning_cgrpo.navsim.traffic.traffic import Traffic
from lightning_cgrpo.scenes.scene import AGENT_TYPES, MOVING_TYPES

RADIUS = 100.0
MOST = {"vehicle": 50, "pedestrian": 25, "bicycle": 10}
"""Agents of a type that are minded, the nearest."""
MOST_STATIC = 50
RESOLUTION = 2
"""Steps for which the forecast stays the same."""
NODE_CAPACITY = 10


@dataclass(frozen=True, eq=False)
class Forecast:
    """The surroundings of an ego, from its present ones. N agents, C red connectors.

    Args:
        poses: ``[N, 3]`` x, y, yaw now.
        sizes: ``[N, 2]`` length, width.
        types: ``[N]`` int64, of `AGENT_TYPES`.
        speeds: ``[N]`` m/s, 0 of types that don't move.
        drift: ``[N, 2]`` m/s in the scene's frame, along the heading or against it.
        red: ``[L]`` bool, the closed connectors of the route.
        red_polygons: ``[C]`` of those.
        ignored: ``[N + C]`` bool, what the ego overlaps now.
    """

    poses: Tensor
    sizes: Tensor
    types: Tensor
    speeds: Tensor
    drift: Tensor
    red: Tensor
    red_polygons: Shapes
    ignored: np.ndarray

    @classmethod
    def of(cls, road: Road, lanes: Sequence[int]) -> Forecast:
        """For the ego of a scene, whose route has these lanes."""
        agents, lights = road.scene.agents, road.scene.lights
        now = (agents.times.abs() < EARLY).nonzero()[:, 0]
        states, seen = agents.states[:, now], agents.seen[:, now].any(1)
        states = states[:, 0] if len(now) else agents.states.new_zeros(len(seen), 5)
        rows = _nearest(road, states[:, :2], agents.types, seen)
        pose, velocity, types = states[rows, :3], states[rows, 3:], agents.types[rows]
        speeds = torch.where(types < MOVING_TYPES, velocity.norm(dim=1), 0)
        forward = torch.stack([pose[:, 2].cos(), pose[:, 2].sin()], 1)
        along = (forward * velocity).sum(1) > 0
        drift = torch.where(along, speeds, -speeds)[:, None] * forward
        red = held(lights, lights.red)[0]
        red &= torch.isin(torch.arange(len(red)), torch.tensor(lanes))
        red_polygons = road.lane_polygons[red.numpy()]
        sizes = agents.sizes[rows, :2]
        overlapped = shapely.intersects(boxes(pose, sizes), road.footprint)
        inside = shapely.within(road.footprint, red_polygons)
        return cls(pose, sizes, types, speeds, drift, red, red_polygons, np.concatenate([overlapped, inside]))

    @cached_property
    def poses_at(self) -> Tensor:
        """``[N, 41, 3]``."""
        seconds = torch.arange(STEPS) // RESOLUTION * (RESOLUTION * DT)
        moved = self.poses[:, None, :2] + self.drift[:, None] * seconds[:, None]
        return torch.cat([moved, self.poses[:, None, 2:].expand(-1, STEPS, 1)], 2)

    @cached_property
    def shapes(self) -> Shapes:
        """``[41, N + C]`` polygons of agents and then red connectors."""
        moving = boxes(self.poses_at.transpose(0, 1), self.sizes)
        return np.concatenate([moving, np.tile(self.red_polygons, (STEPS, 1))], axis=1)

    def touching(self, areas: Shapes, step: int) -> list[np.ndarray]:
        """Rows of `shapes` that touch each of some areas at a step, but for those ignored, in the official order."""
        tree = shapely.STRtree(self.shapes[step], NODE_CAPACITY)
        area, row = tree.query(areas, predicate="intersects")
        minded = ~self.ignored[row]
        return [row[minded & (area == number)] for number in range(len(areas))]

    def speeds_along(self, rows: np.ndarray, yaws: Array) -> Array:
        """Speeds ``[P, n]`` of rows ``[n]`` of `shapes` in directions ``[P]``; NaN of red connectors."""
        agent = rows < len(self.poses)
        at = np.where(agent, rows, 0)
        if not agent.any():
            return np.full((len(yaws), len(rows)), np.nan)
        speeds = self.speeds.numpy()[at] * np.cos(self.poses.numpy()[at, 2] - yaws[:, None])
        return np.where(agent, speeds, np.nan)


def as_traffic(forecasts: Sequence[Forecast], of_row: Tensor) -> Traffic:
    """Forecasts of K scenes as what R candidates drive in, the scene of each being ``of_row [R]``."""
    poses = pad_sequence([forecast.poses_at for forecast in forecasts], batch_first=True)
    minded = [torch.from_numpy(~forecast.ignored[: len(forecast.poses)]) for forecast in forecasts]
    return Traffic(
        poses,
        pad_sequence([forecast.sizes for forecast in forecasts], batch_first=True),
        pad_sequence(minded, batch_first=True)[..., None].expand(-1, -1, STEPS),
        pad_sequence([forecast.types for forecast in forecasts], batch_first=True, padding_value=-1),
        pad_sequence([forecast.speeds for forecast in forecasts], batch_first=True),
        of_row,
    )


def _nearest(road: Road, positions: Tensor, types: Tensor, seen: Tensor) -> Tensor:
    """Rows of the agents to mind: static ones first, then type by type, from near to far."""
    distances = (positions - torch.from_numpy(road.center)).norm(dim=1)
    order = torch.where(seen & (distances <= RADIUS), distances, torch.inf).argsort(stable=True)
    order = order[: int((seen & (distances <= RADIUS)).sum())]
    kinds = [order[types[order] >= MOVING_TYPES][:MOST_STATIC]]
    kinds += [order[types[order] == AGENT_TYPES.index(name)][:most] for name, most in MOST.items()]
    return torch.cat(kinds)
