"""Where the planner might go: offsets from the centerline, driven at several speeds with an eye on what is ahead.

See docs/navsim_score.md §12; officially pdm_generator.py and batch_idm_policy.py.
"""

from __future__ import annotations

import numpy as np
import shapely
import torch

from lightning_cgrpo.navsim.expert.forecast import Forecast
from lightning_cgrpo.navsim.geometry.path import Array, Path
from lightning_cgrpo.navsim.geometry.shapes import Shapes, boxes
from lightning_cgrpo.navsim.simulation.timing import DT, STEPS
from lightning_cgrpo.scenes.vehicle import LENGTH, REAR_AXLE_TO_CENTER, WIDTH

OFFSETS = (0.0, -1.0, 1.0)
"""Meters to the left of the centerline."""
SPEED_LIMIT_FRACTIONS = (0.2, 0.4, 0.6, 0.8, 1.0)
PROPOSALS = len(OFFSETS) * len(SPEED_LIMIT_FRACTIONS)
FALLBACK_SPEED_LIMIT = 15.0
CORRIDOR_SECONDS = 5.0
"""For which the corridor that is searched for leaders is long enough at the speed limit."""
LEADER_STEPS = 2
"""Steps after which leaders are looked for again."""

MIN_GAP = 1.0
HEADWAY = 1.5
ACCELERATION = 1.5
DECELERATION = 3.0
EXPONENT = 10


class Leaders:
    """What is ahead of each proposal.

    In the first step, before leaders are looked for, all are 0: the proposals brake.
    """

    def __init__(self) -> None:
        self.distance: Array = np.zeros(PROPOSALS)
        """Along the path."""
        self.speed: Array = np.zeros(PROPOSALS)
        self.rear: Array = np.zeros(PROPOSALS)
        """Subtracted from the distance."""


def propose(centerline: Path, speed_limit: float, start: Array, speed: float, forecast: Forecast) -> Array:
    """Drive along each offset at each speed, from the place next to the ego.

    Args:
        centerline: of the route.
        speed_limit: m/s, NaN if there is none.
        start: ``[3]`` the ego's pose.
        speed: m/s of the ego, forward.
        forecast: of the others.

    Returns:
        ``[15, 41, 3]`` poses at 10 Hz, offset by offset.
    """
    paths = [centerline.shifted(offset) if offset else centerline for offset in OFFSETS]
    limit = FALLBACK_SPEED_LIMIT if np.isnan(speed_limit) else speed_limit
    targets = np.tile(np.array(SPEED_LIMIT_FRACTIONS) * limit, len(paths))
    distances = np.repeat([path.project(start[:2]) for path in paths], len(SPEED_LIMIT_FRACTIONS))
    speeds = np.full(PROPOSALS, speed)
    ahead = CORRIDOR_SECONDS * abs(limit * max(SPEED_LIMIT_FRACTIONS))
    begins = distances[:: len(SPEED_LIMIT_FRACTIONS)]
    corridors = np.array(
        [path.corridor(begin, begin + ahead, WIDTH / 2) for path, begin in zip(paths, begins, strict=True)]
    )
    poses = [_at(paths, distances)]
    leaders = Leaders()
    for step in range(1, STEPS):
        if step % LEADER_STEPS == 0:
            _look(leaders, paths, corridors, distances, poses[-1], forecast, step)
        change = _acceleration(speeds, targets, leaders.distance - distances - leaders.rear, leaders.speed)
        distances, speeds = distances + DT * speeds, speeds + DT * change
        poses.append(_at(paths, distances))
    return np.stack(poses, 1)


def _at(paths: list[Path], distances: Array) -> Array:
    """``[15, 3]`` poses on their paths."""
    each = distances.reshape(len(paths), -1)
    return np.concatenate([path.at(along) for path, along in zip(paths, each, strict=True)])


def _acceleration(speed: Array, target: Array, gap: Array, leader_speed: Array) -> Array:
    """Of the Intelligent Driver Model, ``[15]``."""
    closing = speed * (speed - leader_speed) / (2 * np.sqrt(ACCELERATION * DECELERATION))
    wanted_gap = MIN_GAP + speed * HEADWAY + closing
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        free = (speed / target) ** EXPONENT
        change = ACCELERATION * (1 - free - (wanted_gap / np.maximum(gap, MIN_GAP)) ** 2)
    limited: Array = np.clip(change, -DECELERATION, ACCELERATION)
    return limited


def _look(
    leaders: Leaders,
    paths: list[Path],
    corridors: Shapes,
    distances: Array,
    poses: Array,
    forecast: Forecast,
    step: int,
) -> None:
    """Look for leaders: of what touches the corridor and is further along the path, the nearest.

    Officially the proposals of a path share a record that is filled one after the other: once one of them has found
    nothing ahead, the half length that is subtracted from the path's end stays for those after it, and so does the
    speed of a leader where the next leader is a red light.
    """
    shapes = forecast.shapes[step]
    egos = _footprints(poses)
    for number, (path, rows) in enumerate(zip(paths, forecast.touching(corridors, step), strict=True)):
        first = number * len(SPEED_LIMIT_FRACTIONS)
        mine = slice(first, first + len(SPEED_LIMIT_FRACTIONS))
        along = path.project(shapely.get_coordinates(shapely.centroid(shapes[rows])))
        is_ahead = along > distances[mine, None]
        apart = np.where(is_ahead, shapely.distance(egos[mine, None], shapes[rows]), np.inf)
        speeds = forecast.speeds_along(rows, poses[mine, 2])
        speed = rear = 0.0
        for row, gaps in enumerate(apart):
            proposal = first + row
            if np.isinf(gaps).all():
                leaders.distance[proposal] = path.line.length
                rear = LENGTH / 2
            else:
                nearest = gaps.argmin()
                leaders.distance[proposal] = distances[proposal] + gaps[nearest]
                if not np.isnan(speeds[row, nearest]):
                    speed = speeds[row, nearest]
            leaders.speed[proposal] = speed
            leaders.rear[proposal] = rear


def _footprints(poses: Array) -> Shapes:
    """``[15]`` of the ego at poses of its rear axle."""
    ahead = REAR_AXLE_TO_CENTER * np.column_stack([np.cos(poses[:, 2]), np.sin(poses[:, 2])])
    centers = np.column_stack([poses[:, :2] + ahead, poses[:, 2]])
    return boxes(torch.from_numpy(centers), torch.tensor([LENGTH, WIDTH], dtype=torch.float64))
