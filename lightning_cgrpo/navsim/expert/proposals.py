"""Proposals: paths at offsets from the centerline, at several speeds behind leaders.

docs/navsim_score.md §12; officially pdm_generator.py and batch_idm_policy.py.
"""

from __future__ import annotations

import numpy as np
import shapely
import torch

from lightning_cgrpo.navsim.expert.forecast import Forecast
from lightning_cgrpo.navsim.geometry.lane_path import Array, LanePath
from lightning_cgrpo.navsim.geometry.shapes import Shapes, boxes
from lightning_cgrpo.navsim.route.lane_ahead import LaneAhead
from lightning_cgrpo.navsim.simulation.timing import DT, STEPS
from lightning_cgrpo.scenes.vehicle import LENGTH, REAR_AXLE_TO_CENTER, WIDTH

OFFSETS = (0.0, -1.0, 1.0)  # meters to the left of the centerline
SPEED_LIMIT_FRACTIONS = (0.2, 0.4, 0.6, 0.8, 1.0)
SPEEDS = len(SPEED_LIMIT_FRACTIONS)
PROPOSALS = len(OFFSETS) * SPEEDS
FALLBACK_SPEED_LIMIT = 15.0
CORRIDOR_SECONDS = 5.0  # length of the corridor that is searched for leaders, in seconds at the speed limit
LEADER_STEPS = 2  # steps between two searches for leaders

MIN_GAP = 1.0
HEADWAY = 1.5
ACCELERATION = 1.5
DECELERATION = 3.0
EXPONENT = 10


def propose(ahead: LaneAhead, forecast: Forecast) -> Array:
    """``[15, 41, 3]`` rear-axle poses at 10 Hz in the scene's frame: all five speeds per offset, offset by offset."""
    ego, limit = ahead.road.scene.ego, float(ahead.road.lanes.speed_limit[ahead.lanes[0]])
    limit = FALLBACK_SPEED_LIMIT if np.isnan(limit) else limit
    paths = [ahead.path.shifted(offset) if offset else ahead.path for offset in OFFSETS]
    begins = [float(path.project(ahead.road.position)) for path in paths]
    length = CORRIDOR_SECONDS * abs(limit * max(SPEED_LIMIT_FRACTIONS))
    corridors = np.array(
        [path.corridor(begin, begin + length, WIDTH / 2) for path, begin in zip(paths, begins, strict=True)]
    )
    targets = np.tile(np.array(SPEED_LIMIT_FRACTIONS) * limit, len(paths))
    distances, speeds = np.repeat(begins, SPEEDS), np.full(PROPOSALS, float(ego.velocities[-1, 0]))
    poses = [_at(paths, distances)]
    # Of leaders: distance along the path, speed, length to subtract. Proposals brake before the first search.
    leaders = np.zeros((3, PROPOSALS))
    for step in range(1, STEPS):
        if step % LEADER_STEPS == 0:
            _search(leaders, paths, corridors, distances, poses[-1], forecast, step)
        ahead_at, leader_speeds, rears = leaders
        change = _acceleration(speeds, targets, ahead_at - distances - rears, leader_speeds)
        distances, speeds = distances + DT * speeds, speeds + DT * change
        poses.append(_at(paths, distances))
    return np.stack(poses, 1)


def _at(paths: list[LanePath], distances: Array) -> Array:
    each = distances.reshape(len(paths), -1)
    return np.concatenate([path.at(along) for path, along in zip(paths, each, strict=True)])


def _acceleration(speed: Array, target: Array, gap: Array, leader_speed: Array) -> Array:
    """Accelerations ``[15]`` of the Intelligent Driver Model, in meters and seconds."""
    closing = speed * (speed - leader_speed) / (2 * np.sqrt(ACCELERATION * DECELERATION))
    wanted_gap = MIN_GAP + speed * HEADWAY + closing
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        free = (speed / target) ** EXPONENT
        change = ACCELERATION * (1 - free - (wanted_gap / np.maximum(gap, MIN_GAP)) ** 2)
    limited: Array = np.clip(change, -DECELERATION, ACCELERATION)
    return limited


def _search(
    leaders: Array,
    paths: list[LanePath],
    corridors: Shapes,
    distances: Array,
    poses: Array,
    forecast: Forecast,
    step: int,
) -> None:
    """Write each proposal's leader into ``leaders [3, 15]``: distance along the path, speed, length to subtract.

    The leader is the nearest shape in the corridor and further along the path, else the path's end. Official quirks on
    each path: after a proposal without leader, half the ego's length stays subtracted for later proposals. Red lights
    and the path's end get the speed of the previous proposal's leader.
    """
    shapes = forecast.shapes[step]
    egos = _footprints(poses)
    for number, (path, rows) in enumerate(zip(paths, forecast.touching(corridors, step), strict=True)):
        first = number * SPEEDS
        mine = slice(first, first + SPEEDS)
        along = path.project(shapely.get_coordinates(shapely.centroid(shapes[rows])))
        is_ahead = along > distances[mine, None]
        apart = np.where(is_ahead, shapely.distance(egos[mine, None], shapes[rows]), np.inf)
        speeds = forecast.speeds_along(rows, poses[mine, 2])
        speed = rear = 0.0
        for row, gaps in enumerate(apart):
            proposal = first + row
            if np.isinf(gaps).all():
                distance, rear = path.line.length, LENGTH / 2
            else:
                nearest = gaps.argmin()
                distance = distances[proposal] + gaps[nearest]
                if not np.isnan(speeds[row, nearest]):
                    speed = speeds[row, nearest]
            leaders[:, proposal] = distance, speed, rear


def _footprints(poses: Array) -> Shapes:
    ahead = REAR_AXLE_TO_CENTER * np.column_stack([np.cos(poses[:, 2]), np.sin(poses[:, 2])])
    centers = np.column_stack([poses[:, :2] + ahead, poses[:, 2]])
    return boxes(torch.from_numpy(centers), torch.tensor([LENGTH, WIDTH], dtype=torch.float64))
