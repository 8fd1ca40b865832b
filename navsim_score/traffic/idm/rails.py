"""Vehicles and lanes of reactive traffic; found once per scene, with shapely.

docs/navsim_score_scenes.md §10; officially navsim_idm_agents_builder.py, navsim_idm_agents.py, and of nuPlan
idm_agents_builder.py, polyline_map_object.py and idm/utils.py.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import shapely
import torch

from driving_scenes.scene import AGENT_TYPES, Scene
from driving_scenes.vehicle import corners
from navsim_score.geometry.lane_path import Array, headings
from navsim_score.geometry.shapes import Shapes, boxes, polygons
from navsim_score.simulation.timing import EARLY
from navsim_score.traffic.idm.model import TRAFFIC_RADIUS

VEHICLE = AGENT_TYPES.index("vehicle")
TARGET_SPEED = 10.0
SNAP_DISTANCE = 3.0  # meters; a vehicle farther from its lane's centerline is not put on the lane
PARKED_SPEED = 0.1
LOOK_AHEAD = 0.5  # meters over which the direction of a lane is measured
TOLERANCE = 0.005  # meters by which the lane may be simplified (officially 1 % of a vehicle's half width)


class Rail(NamedTuple):
    """A vehicle and its lane."""

    agent: int  # row in the scene's agents
    points: Array  # [V, 2]
    distances: Array  # [V] meters along the lane
    yaws: Array  # [V] unwrapped
    corners: np.ndarray  # [M + 1] int64 rows of the points of the simplified lane
    progress: float  # meters along the lane at the start
    pose: Array  # [3] on the lane at the start
    speed: float  # m/s at the start
    target_speed: float  # m/s on a free road

    @property
    def start(self) -> Array:
        return np.array([np.interp(self.progress, self.distances, column) for column in self.points.T])


class Traveling(NamedTuple):
    """A scene's vehicles at t = 0."""

    rails: tuple[Rail, ...]  # driving vehicles, in the order of their decisions
    parked: tuple[int, ...]  # rows of parked agents


class _Snap(NamedTuple):
    """A place on a lane."""

    lane: int
    progress: float
    pose: Array
    deviation: float


def find_rails(scene: Scene) -> Traveling:
    """Put each vehicle on the lane under it of nearest direction, unless it overlaps the ego or an earlier vehicle.

    Vehicles too far from the ego are omitted.
    """
    agents = scene.agents
    lanes = scene.map.lanes
    now = (agents.times.abs() < EARLY).nonzero()[:, 0]
    there = agents.seen[:, now].any(1) & (agents.types == VEHICLE)
    rows = there.nonzero()[:, 0].tolist()
    if not rows:
        return Traveling((), ())
    states = agents.states[rows][:, now[0]].numpy()
    off_road, segments = _lanes_under(scene, states[:, :2])
    occupied = [shapely.Polygon(corners(scene.ego.poses[-1]).numpy())]
    rails: list[Rail] = []
    parked = []
    ego = scene.ego.poses[-1, :2].numpy()
    target = TARGET_SPEED
    for number, row in enumerate(rows):
        state = states[number]
        speed = float(np.hypot(*state[3:]))
        snap = _best_snap(scene, segments[number], state)
        if snap is None or snap.deviation > SNAP_DISTANCE:
            if snap is not None or (speed < PARKED_SPEED and off_road[number]):
                parked.append(row)
            continue
        box = boxes(torch.from_numpy(snap.pose), agents.sizes[row, :2])
        if shapely.intersects(occupied, box).any():
            continue
        occupied.append(box)
        # The official code overwrites the default: a lane without a limit takes the limit of the vehicle before.
        limit = float(lanes.speed_limit[snap.lane])
        if limit and not math.isnan(limit):
            target = limit
        rail = _make_rail(row, lanes.centerlines[snap.lane].numpy(), snap, speed, target)
        if np.hypot(*(rail.start - ego)) <= TRAFFIC_RADIUS:
            rails.append(rail)
    return Traveling(tuple(rails), tuple(parked))


def _lanes_under(scene: Scene, points: Array) -> tuple[np.ndarray, list[list[int]]]:
    """``[N]`` bool of points off lanes and intersections; and the lanes, else connectors, under each point."""
    connector = scene.map.lanes.connector.numpy()
    at = shapely.points(points)
    inside = _contained_in(polygons(scene.map.lanes.polygons), at)  # [N, lanes]
    in_lane = np.any(inside & ~connector, axis=1, keepdims=True)  # [N, 1]
    in_intersection = np.any(_contained_in(polygons(scene.map.intersections.polygons), at), axis=1, keepdims=True)
    chosen = inside & np.where(in_lane, ~connector, in_intersection & connector)
    off_road = ~(in_lane | in_intersection)[:, 0]
    return off_road, [np.flatnonzero(row).tolist() for row in chosen]


def _contained_in(areas: Shapes, points: Shapes) -> np.ndarray:
    """``[points, areas]`` bool; the boundary is outside."""
    inside = np.zeros((len(points), len(areas)), dtype=bool)
    if len(areas):
        inside[tuple(shapely.STRtree(areas).query(points, predicate="within"))] = True
    return inside


def _best_snap(scene: Scene, lanes: list[int], state: Array) -> _Snap | None:
    """Place on the lane of nearest direction, if any; officially the difference of angles isn't wrapped."""
    places = [_snap_to_lane(scene, lane, state) for lane in lanes]
    return min(places, key=lambda snap: abs(float(snap.pose[2] - state[2])), default=None)


def _snap_to_lane(scene: Scene, lane: int, state: Array) -> _Snap:
    line = shapely.LineString(scene.map.lanes.centerlines[lane].numpy())
    progress = float(line.project(shapely.Point(state[:2])))
    around = shapely.line_interpolate_point(line, progress + LOOK_AHEAD * np.arange(-1, 2))
    behind, here, ahead = shapely.get_coordinates(around)
    along = ahead - here if (ahead != here).any() else here - behind
    pose = np.append(here, math.atan2(along[1], along[0]))
    return _Snap(lane, progress, pose, float(np.hypot(*(here - state[:2]))))


def _make_rail(agent: int, line: Array, snap: _Snap, speed: float, target: float) -> Rail:
    steps = np.linalg.norm(np.diff(line, axis=0), axis=1)
    distances = np.append(0.0, steps).cumsum()
    # The official code drops repeated points and the last point. A lane of two points, where the official code fails,
    # keeps the last point.
    kept = np.flatnonzero(~np.isclose(steps, 0.0))
    if len(kept) < 2:
        kept = np.append(kept, len(line) - 1)
    points = line[kept]
    return Rail(
        agent=agent,
        points=points,
        distances=distances[kept],
        yaws=np.unwrap(headings(line)[kept]),
        corners=_simplified_rows(points),
        progress=snap.progress,
        pose=snap.pose,
        speed=speed,
        target_speed=target,
    )


def _simplified_rows(points: Array) -> np.ndarray:
    """Rows of the points that the simplified line keeps."""
    simple = shapely.get_coordinates(shapely.simplify(shapely.LineString(points), TOLERANCE, preserve_topology=False))
    rows = [0]
    for point in simple[1:]:
        begin = rows[-1] + 1
        is_point = (points[begin:] == point).all(1)
        rows.append(begin + int(is_point.argmax()))
    return np.array(rows)
