"""Forecast: agents keep speed and heading, lights keep their state.

docs/navsim_score_scenes.md §12; officially pdm_observation.py and pdm_object_manager.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import shapely
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from driving_scenes.scene import AGENT_TYPES, MOVING_TYPES
from navsim_score.batch.agent_tracks import AgentTracks
from navsim_score.batch.surfaces import red_at_steps
from navsim_score.geometry.boxes import box_corners
from navsim_score.geometry.lane_path import Array
from navsim_score.geometry.shapes import Shapes, boxes
from navsim_score.route.road import Road
from navsim_score.simulation.timing import DT, EARLY, STEPS
from navsim_score.traffic.traffic import TrafficRollouts

FORECAST_RADIUS = 100.0
MOST = {"vehicle": 50, "pedestrian": 25, "bicycle": 10}  # forecast agents of each type: the nearest
MOST_STATIC = 50
RESOLUTION = 2  # steps between two updates of the forecast
NODE_CAPACITY = 10


@dataclass(frozen=True, eq=False)
class Forecast:
    """A forecast of N agents and C red connectors."""

    poses: Tensor  # [N, 3] x, y, yaw now
    sizes: Tensor  # [N, 2] length, width
    types: Tensor  # [N] int64 index into `AGENT_TYPES`
    speeds: Tensor  # [N] m/s, 0 for types that don't move
    drift: Tensor  # [N, 2] m/s in the scene's frame, along or against the heading
    red: Tensor  # [L] bool, the red connectors of the route
    red_polygons: Shapes  # [C] their polygons
    ignored: np.ndarray  # [N + C] bool, agents and connectors that the ego overlaps now

    @classmethod
    def of(cls, road: Road, lanes: Sequence[int]) -> Forecast:
        agents = road.scene.agents
        now = (agents.times.abs() < EARLY).nonzero()[:, 0]
        seen = agents.seen[:, now].any(1)
        states = agents.states.new_zeros(len(seen), 5)
        if len(now):
            states = agents.states[:, now[0]]
        rows = _nearest_agents(road, states[:, :2], agents.types, seen)
        pose = states[rows, :3]
        velocity = states[rows, 3:]
        types = agents.types[rows]
        speeds = torch.where(types < MOVING_TYPES, velocity.norm(dim=1), 0)
        forward = torch.stack([pose[:, 2].cos(), pose[:, 2].sin()], 1)
        along = (forward * velocity).sum(1) > 0
        drift = torch.where(along, speeds, -speeds)[:, None] * forward
        red = red_at_steps(road.scene.lights)[0]
        red &= torch.isin(torch.arange(len(red)), torch.tensor(lanes))
        red_polygons = road.lane_polygons[red.numpy()]
        sizes = agents.sizes[rows, :2]
        overlapped = shapely.intersects(boxes(pose, sizes), road.footprint)
        inside = shapely.within(road.footprint, red_polygons)
        return cls(
            poses=pose,
            sizes=sizes,
            types=types,
            speeds=speeds,
            drift=drift,
            red=red,
            red_polygons=red_polygons,
            ignored=np.concatenate([overlapped, inside]),
        )

    def poses_at(self, steps: int = STEPS) -> Tensor:
        """``[N, steps, 3]`` at 10 Hz, updated every 0.2 s."""
        seconds = torch.arange(steps) // RESOLUTION * (RESOLUTION * DT)
        moved = self.poses[:, None, :2] + self.drift[:, None] * seconds[:, None]
        return torch.cat([moved, self.poses[:, None, 2:].expand(-1, steps, 1)], 2)

    def shapes(self, steps: Sequence[int]) -> Shapes:
        """Polygons ``[T, N + C]`` at steps: agents, then red connectors."""
        corners = box_corners(self.poses_at().transpose(0, 1), self.sizes)[list(steps)]
        agents = shapely.polygons(corners.numpy())
        connectors = np.tile(self.red_polygons, (len(steps), 1))
        return np.concatenate([agents, connectors], axis=1)

    def touching(self, areas: Shapes, shapes: Shapes) -> np.ndarray:
        """``[M, 3]`` row and column of `shapes` and area, where a shape ``[T, N + C]`` touches an area, unless ignored.

        Sorted by row and area; shapes that touch one area are in the order of the official tree.
        """
        # Shapes and areas whose bounds touch, and then exactly.
        low_x, low_y, high_x, high_y = np.moveaxis(shapely.bounds(shapes), -1, 0)
        box = shapely.bounds(areas)[:, None, None]
        near = (low_x <= box[..., 2]) & (box[..., 0] <= high_x) & (low_y <= box[..., 3]) & (box[..., 1] <= high_y)
        area, row, column = np.nonzero(near & ~self.ignored)
        shapely.prepare(areas)
        hit = shapely.intersects(areas[area], shapes[row, column])
        touching: np.ndarray = np.column_stack([row, area, column])[hit]
        touching = touching[np.lexsort(touching.T[::-1])]
        # Several shapes that touch one area are put in the order in which the official tree finds them.
        several = touching[1:][(touching[1:, :2] == touching[:-1, :2]).all(1)]
        for number in np.unique(several[:, 0]):
            tree = shapely.STRtree(shapes[number], NODE_CAPACITY)
            for at in np.unique(several[several[:, 0] == number, 1]):
                ordered = tree.query(areas[at], predicate="intersects")
                touching[(touching[:, :2] == (number, at)).all(1), 2] = ordered[~self.ignored[ordered]]
        return touching[:, [0, 2, 1]]

    @property
    def motion(self) -> Array:
        """Speeds in m/s and headings ``[N + C, 2]`` of `shapes`; NaN for red connectors."""
        unknown = np.full((len(self.red_polygons), 2), np.nan)
        motion: Array = np.concatenate([np.column_stack([self.speeds, self.poses[:, 2]]), unknown])
        return motion


def as_traffic(forecasts: Sequence[Forecast], of_row: Tensor, steps: int = STEPS) -> TrafficRollouts:
    """Turn forecasts of K scenes into traffic of some steps for R candidates in scenes ``of_row [R]``."""
    poses = pad_sequence([forecast.poses_at(steps) for forecast in forecasts], batch_first=True)
    sizes = pad_sequence([forecast.sizes for forecast in forecasts], batch_first=True)
    speeds = pad_sequence([forecast.speeds for forecast in forecasts], batch_first=True)
    counted = [torch.from_numpy(~forecast.ignored[: len(forecast.poses)]) for forecast in forecasts]
    present = pad_sequence(counted, batch_first=True)[..., None].expand(-1, -1, steps)
    types = pad_sequence([forecast.types for forecast in forecasts], batch_first=True, padding_value=-1)
    tracks = AgentTracks(poses, speeds[..., None].expand(-1, -1, steps), sizes, present, types, first_speed=speeds)
    return TrafficRollouts.of(tracks, of_row)


def _nearest_agents(road: Road, positions: Tensor, types: Tensor, seen: Tensor) -> Tensor:
    """Rows of the agents to forecast: static agents first, then by type, each from near to far."""
    distances = (positions - torch.from_numpy(road.center)).norm(dim=1)
    near = seen & (distances <= FORECAST_RADIUS)
    order = torch.where(near, distances, torch.inf).argsort(stable=True)[: int(near.sum())]
    rows = [order[types[order] >= MOVING_TYPES][:MOST_STATIC]]
    for name, most in MOST.items():
        of_type = order[types[order] == AGENT_TYPES.index(name)]
        rows.append(of_type[:most])
    return torch.cat(rows)
