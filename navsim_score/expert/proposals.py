"""Proposals: paths at offsets from the centerline, at several speeds behind leaders; of many scenes at once.

docs/navsim_score_scenes.md §12; officially pdm_generator.py and batch_idm_policy.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import shapely
import torch

from driving_scenes.vehicle import LENGTH, REAR_AXLE_TO_CENTER, WIDTH
from navsim_score.expert.forecast import Forecast
from navsim_score.geometry.lane_path import Array, LanePaths
from navsim_score.geometry.shapes import Shapes, boxes
from navsim_score.route.lane_ahead import LaneAhead
from navsim_score.simulation.timing import DT, STEPS

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


def propose(ahead: Sequence[LaneAhead], forecasts: Sequence[Forecast]) -> Array:
    """``[S, 15, 41, 3]`` rear-axle poses at 10 Hz in the scenes' frames: all five speeds per offset, offset by offset.

    All S scenes are searched together, with the results of each alone.
    """
    # A path for each offset of each scene.
    places = []
    single = []
    for lanes in ahead:
        for offset in OFFSETS:
            path = lanes.path.shifted(offset) if offset else lanes.path
            places.append(lanes.road.position)
            single.append(path)
    limits = np.repeat([_speed_limit(lanes) for lanes in ahead], len(OFFSETS))
    paths = LanePaths(single)
    # The corridors in which leaders are searched.
    begins = shapely.line_locate_point(paths.lines, shapely.points(places))
    ends = begins + CORRIDOR_SECONDS * np.abs(limits * max(SPEED_LIMIT_FRACTIONS))
    corridors = []
    for path, begin, end in zip(single, begins, ends, strict=True):
        corridors.append(path.corridor(begin, end, WIDTH / 2))
    contacts = _find_contacts(paths, np.array(corridors), forecasts)
    # Each path is driven at several target speeds.
    targets = np.array(SPEED_LIMIT_FRACTIONS) * limits[:, None]  # [paths, SPEEDS]
    distances = np.repeat(begins[:, None], SPEEDS, 1)
    speeds = np.repeat([float(lanes.road.scene.ego.velocities[-1, 0]) for lanes in ahead], len(OFFSETS))[:, None]
    driven = [distances]
    # Of leaders: distance along the path, speed, length to subtract. Proposals brake before the first search.
    leaders: Array = np.zeros((3, *distances.shape))
    for step in range(1, STEPS):
        if step % LEADER_STEPS == 0:
            leaders = _find_leaders(paths, distances, contacts[step // LEADER_STEPS - 1])
        ahead_at, leader_speeds, rears = leaders
        change = _idm_acceleration(speeds, targets, ahead_at - distances - rears, leader_speeds)
        distances = distances + DT * speeds
        speeds = speeds + DT * change
        driven.append(distances)
    poses = paths.at(np.stack(driven, 2).reshape(len(single), -1))
    return poses.reshape(len(ahead), PROPOSALS, STEPS, 3)


def _speed_limit(lanes: LaneAhead) -> float:
    limit = float(lanes.road.lanes.speed_limit[lanes.lanes[0]])
    return FALLBACK_SPEED_LIMIT if np.isnan(limit) else limit


class _Contacts(NamedTuple):
    """M shapes in the corridors of paths at a step, by path."""

    path: np.ndarray  # [M] int64
    shapes: Shapes  # [M]
    along: Array  # [M] meters of the shape's center along the path
    motion: Array  # [M, 2] speed, heading


def _find_contacts(paths: LanePaths, corridors: Shapes, forecasts: Sequence[Forecast]) -> list[_Contacts]:
    """The contacts of each search, because the forecast does not depend on the ego."""
    searched = range(LEADER_STEPS, STEPS, LEADER_STEPS)
    tables = []
    shapes = []
    motions = []
    for number, (forecast, areas) in enumerate(zip(forecasts, np.split(corridors, len(forecasts)), strict=True)):
        at_steps = forecast.shapes(searched)
        step, agent, area = forecast.touching(areas, at_steps).T
        tables.append(np.column_stack([step, number * len(OFFSETS) + area]))
        shapes.append(at_steps[step, agent])
        motions.append(forecast.motion[agent])
    step, path = np.concatenate(tables).T
    flat = np.concatenate(shapes)
    motion = np.concatenate(motions)
    along = shapely.line_locate_point(paths.lines[path], shapely.centroid(flat))
    contacts = []
    for number in range(len(searched)):
        rows = np.flatnonzero(step == number)
        contacts.append(_Contacts(path[rows], flat[rows], along[rows], motion[rows]))
    return contacts


def _idm_acceleration(speed: Array, target: Array, gap: Array, leader_speed: Array) -> Array:
    """Accelerations ``[...]`` of the Intelligent Driver Model, in meters and seconds."""
    closing = speed * (speed - leader_speed) / (2 * np.sqrt(ACCELERATION * DECELERATION))
    wanted_gap = MIN_GAP + speed * HEADWAY + closing
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        free = (speed / target) ** EXPONENT
        change = ACCELERATION * (1 - free - (wanted_gap / np.maximum(gap, MIN_GAP)) ** 2)
    limited: Array = np.clip(change, -DECELERATION, ACCELERATION)
    return limited


def _find_leaders(paths: LanePaths, distances: Array, contacts: _Contacts) -> Array:
    """Leaders ``[3, P, 5]`` of proposals at ``distances [P, 5]``: distance along the path, speed, length to subtract.

    The leader is the nearest shape in the corridor and further along the path, else the path's end. Official quirks on
    each path: after a proposal without leader, half the ego's length stays subtracted for later proposals. Red lights
    and the path's end get the speed of the previous proposal's leader.
    """
    path = contacts.path
    gaps = np.full((len(path), SPEEDS), np.inf)
    shape, proposal = np.nonzero(contacts.along[:, None] > distances[path])
    speeds: Array = np.full(distances.shape, np.nan)
    nearest: Array = np.full(distances.shape, np.inf)
    if len(shape):
        poses = paths.at(distances)
        egos = _ego_boxes(poses)
        gaps[shape, proposal] = shapely.distance(egos[path[shape], proposal], contacts.shapes[shape])
        hit, first = np.unique(path, return_index=True)
        nearest[hit] = np.minimum.reduceat(gaps, first)
        # The first of equally near shapes, in the official order.
        place = np.where(gaps == nearest[path], np.arange(len(path))[:, None], len(path))
        leader = np.minimum.reduceat(place, first)
        speed, heading = np.moveaxis(contacts.motion[leader], -1, 0)
        speeds[hit] = speed * np.cos(heading - poses[hit, :, 2])
    # Proposals without a leader follow the path's end.
    missing = np.isinf(nearest)
    speeds[missing] = np.nan
    ahead = np.where(missing, shapely.length(paths.lines)[:, None], distances + nearest)
    rears = np.where(np.logical_or.accumulate(missing, 1), LENGTH / 2, 0.0)
    # Unknown speeds are those of the previous proposal's leader.
    kept = np.zeros(len(speeds))
    for column in range(SPEEDS):
        kept = np.where(np.isnan(speeds[:, column]), kept, speeds[:, column])
        speeds[:, column] = kept
    return np.stack([ahead, speeds, rears])


def _ego_boxes(poses: Array) -> Shapes:
    """``[P, 5]`` boxes of egos at rear-axle poses ``[P, 5, 3]``."""
    forward = REAR_AXLE_TO_CENTER * np.stack([np.cos(poses[..., 2]), np.sin(poses[..., 2])], -1)
    centers = np.concatenate([poses[..., :2] + forward, poses[..., 2:]], -1)
    # A scene's proposals are a row of a wider tensor, because PyTorch rounds the ends of rows otherwise.
    padded = torch.zeros(len(poses) // len(OFFSETS), PROPOSALS + 1, 3, dtype=torch.float64)
    padded[:, :PROPOSALS] = torch.from_numpy(centers).view(-1, PROPOSALS, 3)
    footprints = boxes(padded[:, :PROPOSALS], torch.tensor([LENGTH, WIDTH], dtype=torch.float64))
    return footprints.reshape(len(poses), SPEEDS)
