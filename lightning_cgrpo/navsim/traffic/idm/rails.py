"""Which vehicles of a scene drive by themselves in reactive traffic, and along which lane.

See docs/navsim_score.md §10; officially navsim_idm_agents_builder.py, navsim_idm_agents.py, and of nuPlan
idm_agents_builder.py, polyline_map_object.py and idm/utils.py. Done once per scene, with shapely.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import shapely
import torch

from lightning_cgrpo.navsim.batch.surfaces import EARLY
from lightning_cgrpo.navsim.geometry.path import Array, headings
from lightning_cgrpo.navsim.geometry.shapes import Shapes, boxes, polygons
from lightning_cgrpo.scenes.scene import AGENT_TYPES, Scene
from lightning_cgrpo.scenes.vehicle import corners

RADIUS = 100.0
"""Meters from the ego beyond which vehicles are taken out, for good."""
TARGET_SPEED = 10.0
SNAP_DISTANCE = 3.0
"""Meters that a vehicle may be from its lane's centerline to be moved onto it."""
PARKED_SPEED = 0.1
LOOK_AHEAD = 0.5
"""Meters over which the direction of a lane next to a vehicle is taken."""
TOLERANCE = 0.005
"""Meters by which the footprints' outlines may differ from the lane (officially by 1 % of a vehicle's half width)."""


@dataclass(frozen=True, eq=False)
class Rail:
    """A vehicle and the lane that it drives along.

    Args:
        agent: row in the scene's agents.
        points: ``[V, 2]``.
        distances: ``[V]`` along the lane.
        yaws: ``[V]`` without jumps.
        corners: ``[M + 1]`` int64, the rows of points that suffice to draw the lane.
        progress: meters along the lane at the start.
        pose: ``[3]`` on the lane at the start.
        speed: m/s at the start.
        target_speed: m/s on a free road.
    """

    agent: int
    points: Array
    distances: Array
    yaws: Array
    corners: np.ndarray
    progress: float
    pose: Array
    speed: float
    target_speed: float

    @property
    def start(self) -> Array:
        """``[2]`` where the vehicle is at the start."""
        x, y = (np.interp(self.progress, self.distances, column) for column in self.points.T)
        return np.array([x, y])


@dataclass(frozen=True, eq=False)
class Traveling:
    """The vehicles of a scene that there are at t = 0.

    Args:
        rails: those that drive, in the order in which they decide.
        parked: rows of agents that stay where they are, as long as nobody drives into them.
    """

    rails: tuple[Rail, ...]
    parked: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class _Snap:
    """A place on a lane next to a vehicle."""

    lane: int
    progress: float
    pose: Array
    deviation: float


def find_rails(scene: Scene, *, wrapped_headings: bool = False, own_speed_limits: bool = False) -> Traveling:
    """Put the vehicles of a scene onto lanes: those that are near one and don't overlap the ego or an earlier one.

    Those that are too far from the ego, and so are taken out in the first step, are left out. For the options see
    `Reactive`.
    """
    agents, lanes = scene.agents, scene.map.lanes
    now = (agents.times.abs() < EARLY).nonzero()[:, 0]
    there = agents.seen[:, now].any(1) & (agents.types == AGENT_TYPES.index("vehicle"))
    rows = there.nonzero()[:, 0].tolist()
    if not rows:
        return Traveling((), ())
    states = agents.states[rows][:, now[0]].numpy()
    in_lane, on_map, segments = _segments(scene, states[:, :2])
    occupied = [shapely.Polygon(corners(scene.ego.poses[-1]).numpy())]
    rails: list[Rail] = []
    parked = []
    target = TARGET_SPEED
    for number, row in enumerate(rows):
        state, speed = states[number], float(np.hypot(*states[number, 3:]))
        snap = _snap(scene, segments[number], state, wrapped_headings)
        near = snap is not None and snap.deviation <= SNAP_DISTANCE
        if (speed < PARKED_SPEED and not (in_lane[number] or on_map[number])) or (snap is not None and not near):
            parked.append(row)
        if snap is None or not near:
            continue
        box = boxes(torch.from_numpy(snap.pose), agents.sizes[row, :2])
        if shapely.intersects(occupied, box).any():
            continue
        occupied.append(box)
        # A lane without a limit has that of the vehicle before: officially the default is overwritten.
        limit = float(lanes.speed_limit[snap.lane])
        default = TARGET_SPEED if own_speed_limits else target
        target = limit if limit and not math.isnan(limit) else default
        rails.append(_rail(row, lanes.centerlines[snap.lane].numpy(), snap, speed, target))
    ego = scene.ego.poses[-1, :2].numpy()
    return Traveling(tuple(rail for rail in rails if np.hypot(*(rail.start - ego)) <= RADIUS), tuple(parked))


def _segments(scene: Scene, points: Array) -> tuple[np.ndarray, np.ndarray, list[list[int]]]:
    """Of points ``[N, 2]``: in a lane, in an intersection, and the lanes, or else connectors, that each is in."""
    connector = scene.map.lanes.connector.numpy()
    shape = polygons(scene.map.lanes.polygons)
    at = shapely.points(points)
    lane = _contain(shape, at) & ~connector
    in_lane = np.any(lane, axis=1, keepdims=True)
    in_intersection = np.any(_contain(polygons(scene.map.intersections.polygons), at), axis=1, keepdims=True)
    inside = np.where(in_lane, lane, in_intersection & connector & _contain(shape, at))
    return in_lane[:, 0], in_intersection[:, 0], [np.flatnonzero(row).tolist() for row in inside]


def _contain(areas: Shapes, points: Shapes) -> np.ndarray:
    """``[points, areas]`` bool, without the boundaries."""
    found = np.zeros((len(points), len(areas)), dtype=bool)
    if len(areas):
        found[tuple(shapely.STRtree(areas).query(points, predicate="within"))] = True
    return found


def _snap(scene: Scene, lanes: list[int], state: Array, wrapped: bool) -> _Snap | None:
    """The place on the lane whose direction is nearest, officially by the difference of angles that isn't wrapped."""
    found = [_on(scene, lane, state) for lane in lanes]

    def turn(snap: _Snap) -> float:
        difference = float(snap.pose[2] - state[2])
        return abs(math.remainder(difference, 2 * math.pi) if wrapped else difference)

    return min(found, key=turn, default=None)


def _on(scene: Scene, lane: int, state: Array) -> _Snap:
    line = shapely.LineString(scene.map.lanes.centerlines[lane].numpy())
    progress = float(line.project(shapely.Point(state[:2])))
    here, ahead = _xy(line, progress), _xy(line, progress + LOOK_AHEAD)
    along = ahead - here if (ahead != here).any() else here - _xy(line, progress - LOOK_AHEAD)
    pose = np.append(here, math.atan2(along[1], along[0]))
    return _Snap(lane, progress, pose, float(np.hypot(*(here - state[:2]))))


def _xy(line: shapely.LineString, distance: float) -> Array:
    point = line.interpolate(distance)
    return np.array([point.x, point.y])


def _rail(agent: int, line: Array, snap: _Snap, speed: float, target: float) -> Rail:
    steps = np.linalg.norm(np.diff(line, axis=0), axis=1)
    distances = np.append(0.0, steps).cumsum()
    # Officially the last point is dropped along with repeated ones. A lane of two points (where the official code
    # fails) keeps it.
    kept = np.flatnonzero(~np.isclose(steps, 0.0))
    if len(kept) < 2:
        kept = np.append(kept, len(line) - 1)
    points = line[kept]
    return Rail(
        agent,
        points,
        distances[kept],
        np.unwrap(headings(line)[kept]),
        _corners(points),
        snap.progress,
        snap.pose,
        speed,
        target,
    )


def _corners(points: Array) -> np.ndarray:
    """Rows of the points that a simplified line keeps."""
    simple = shapely.get_coordinates(shapely.simplify(shapely.LineString(points), TOLERANCE, preserve_topology=False))
    rows = [0]
    for _, point in pairwise(simple):
        rows.append(rows[-1] + 1 + int((points[rows[-1] + 1 :] == point).all(1).argmax()))
    return np.array(rows)
