"""Random streets, junctions and merging roads.

Traffic keeps to the right. Lanes end only at the map's end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from driving_scenes.generator.curve import STEP, Array, Curve
from driving_scenes.generator.road_network import RoadNetwork, strip

Random = np.random.Generator
PARKING = 2.5
"""Width of a parking strip."""


@dataclass
class Road:
    """A road for traffic."""

    network: RoadNetwork
    limit: float  # m/s
    edges: list[Curve] = field(default_factory=list)  # right edges of the carriageways
    parking: list[Curve] = field(default_factory=list)  # centerlines of strips of parked cars
    phases: tuple[list[int], ...] = ()  # connectors that are green together, if the junction can have lights


def street(rng: Random) -> Road:
    """One or two directions of one to three lanes."""
    limit = rng.uniform(8, 20)
    ahead = 60 + 8 * limit
    lateral = rng.uniform(0.8, 3.0)
    sharpest = min(lateral / limit**2, 1 / 40)
    curvature = np.zeros(int((60 + ahead) / STEP))
    if rng.random() < 0.7:
        curvature = _random_bends(rng, len(curvature), sharpest)
    return _make_street(rng, curvature, limit)


def corner(rng: Random) -> Road:
    """A street with one tight bend."""
    limit = rng.uniform(8, 14)
    radius = rng.uniform(20, 36)
    turn = rng.uniform(0.8, 1.7) * rng.choice([-1, 1])
    bend = np.full(int(abs(turn) * radius / STEP), np.sign(turn) / radius)
    curvature = np.concatenate([np.zeros(int(70 / STEP)), bend, np.zeros(int((60 + 5 * limit) / STEP))])
    smoothed = np.convolve(curvature, np.full(9, 1 / 9), "same")
    return _make_street(rng, smoothed, limit)


def _make_street(rng: Random, curvature: Array, limit: float) -> Road:
    tight = 4.0 * float(np.abs(curvature).max())  # room for long cars in bends
    width = rng.uniform(3.0, 3.9) + 2 * tight
    divider = Curve.curved(curvature)
    most_lanes = 2 if tight > 0.1 else 3
    lanes = int(rng.integers(1, most_lanes + 1))
    oncoming = int(rng.integers(0, 3))
    road = Road(RoadNetwork(), limit)
    pieces = _cut_curve(divider, rng.uniform(0.3, 0.7) * divider.length)
    _add_carriageway(road, pieces, lanes, width)
    if oncoming:
        median = rng.choice([0.0, 0.0, rng.uniform(0.5, 3.0)])
        oncoming_pieces = [piece.offset(median).reversed() for piece in pieces[::-1]]
        _add_carriageway(road, oncoming_pieces, oncoming, width)
    for edge in road.edges:
        _add_parking(rng, road, edge, 0.4)
    return road


def _add_carriageway(road: Road, pieces: list[Curve], lanes: int, width: float) -> None:
    rows = [road.network.carriageway(piece, lanes, width, road.limit) for piece in pieces]
    for before, after in pairwise(rows):
        for first, last in zip(before, after, strict=True):
            road.network.link(first, last)
    road.edges.append(Curve.joined(pieces).offset(-lanes * width))


def _add_parking(rng: Random, road: Road, edge: Curve, chance: float) -> None:
    if rng.random() < chance and edge.length > 30 and float(np.abs(edge.curvature).max()) < 1 / 40:
        used = edge.part(rng.uniform(0, 10), edge.length - rng.uniform(0, 10))
        road.network.carparks.append(strip(used, 0.0, -PARKING))
        road.parking.append(used.offset(-PARKING / 2))


def _random_bends(rng: Random, count: int, sharpest: float) -> Array:
    knots = np.cumsum(rng.uniform(25, 70, count // 25 + 2))
    values = rng.uniform(-sharpest, sharpest, len(knots))
    if rng.random() < 0.5:
        values = np.abs(values) * rng.choice([-1, 1])
    bends: Array = np.interp(np.arange(count) * STEP, knots - knots[0], values)
    return bends


def junction(rng: Random) -> Road:
    """Two roads that cross or meet."""
    limit = rng.uniform(8, 16)
    width = rng.uniform(3.2, 3.9)
    # The directions of four arms, or three, and their lanes in each direction.
    first = int(rng.integers(1, 3))
    turned = rng.uniform(np.pi / 3, 2 * np.pi / 3)
    second = int(rng.integers(1, 3))
    angles = np.array([0.0, turned, np.pi, np.pi + turned])
    lanes = [first, second, first, second]
    if rng.random() < 0.35:
        angles = np.delete(angles, 3)
        lanes = lanes[:3]
    half = [count * width for count in lanes]
    # The arms begin beyond the places where their edges meet.
    crossings = []
    for i, j in _neighboring_arms(len(angles)):
        between = float((angles[j] - angles[i]) % (2 * np.pi))
        crossings.append(_crossing_distance(half[i], half[j], between))
    reach = max(crossings) + rng.uniform(7, 12)
    road = Road(RoadNetwork(), limit)
    network = road.network
    length = int((70 + 5 * limit) / STEP)
    arms = []
    for angle in angles:
        bend = np.zeros(length)
        if rng.random() < 0.4:
            bend = _random_bends(rng, length, 0.8 / limit**2)
        arms.append(Curve.curved(bend, (reach * np.cos(angle), reach * np.sin(angle), angle)))
    outward = [network.carriageway(arm, count, width, limit) for arm, count in zip(arms, lanes, strict=True)]
    inward = [network.carriageway(arm.reversed(), count, width, limit) for arm, count in zip(arms, lanes, strict=True)]
    # Connectors from each arm to each other; arms of one road are green together.
    road.phases = ([], [])
    for i in range(len(arms)):
        for j in range(len(arms)):
            if i != j:
                connectors = _connect_arms(network, inward[i], outward[j], angles[j] - angles[i] - np.pi)
                road.phases[i % 2].extend(connectors)
    # The junction's area, between its curbs.
    corners = []
    for i, j in _neighboring_arms(len(arms)):
        start = arms[i].offset(half[i]).start
        curb = Curve.between((start[0], start[1], angles[i] + np.pi), arms[j].offset(-half[j]).start)
        corners.append(curb.xy)
    network.intersections.append(np.concatenate(corners))
    for arm, side in zip(arms, half, strict=True):
        road.edges += [arm.offset(-side), arm.offset(side).reversed()]
    for edge in road.edges:
        _add_parking(rng, road, edge, 0.25)
    return road


def _neighboring_arms(count: int) -> list[tuple[int, int]]:
    return [(i, (i + 1) % count) for i in range(count)]


def _crossing_distance(half: float, other: float, angle: float) -> float:
    """Meters from the center to where the edges of two arms meet, from half widths and angle."""
    if angle > np.pi - 1e-3:
        return 0.0
    on_first = (other + half * np.cos(angle)) / np.sin(angle)
    on_second = (half + other * np.cos(angle)) / np.sin(angle)
    return float(max(on_first, on_second))


def _connect_arms(network: RoadNetwork, inward: list[int], outward: list[int], turn: float) -> list[int]:
    """Connect an arm's lanes to another's: all lanes straight ahead, one lane for a turn."""
    turn = (turn + np.pi) % (2 * np.pi) - np.pi
    limit = network.lanes[inward[0]].limit
    if abs(turn) < np.pi / 5:
        return network.connect(list(zip(inward, outward, strict=True)), limit)
    lane = 0 if turn > 0 else -1  # left turns from the left lane to the left lane
    return network.connect([(inward[lane], outward[lane])], 0.7 * limit)


def merge(rng: Random) -> Road:
    """A ramp that joins a road from the right."""
    limit = rng.uniform(13, 22)
    width = rng.uniform(3.3, 3.9)
    lanes = int(rng.integers(1, 4))
    # Meters of road before, in and after the zone where the ramp joins.
    before = int(rng.uniform(70, 110))
    zone = int(rng.uniform(35, 70))
    after = int(60 + 6 * limit)
    bend = _random_bends(rng, before + zone + after, 0.8 / limit**2) * rng.integers(0, 2)
    divider = Curve.curved(bend)
    pieces = _cut_curve(divider, before, before + zone)
    road = Road(RoadNetwork(), limit)
    network = road.network
    first = network.carriageway(pieces[0], lanes, width, limit)
    last = network.carriageway(pieces[2], lanes, width, limit)
    network.connect(list(zip(first, last, strict=True)), limit)
    # The ramp ends beside the zone, and a connector leads to the right lane.
    angle = rng.uniform(0.06, 0.16)
    gap = rng.uniform(0.8, 2.0)
    tip = pieces[1].offset(-lanes * width - gap).start
    ramp_bend = np.linspace(0, rng.uniform(-1, 1) * 1.2 / limit**2, before)
    ramp = Curve.curved(ramp_bend, (tip[0], tip[1], tip[2] + angle + np.pi)).reversed()
    joining = network.carriageway(ramp, 1, width, 0.8 * limit)
    entry = network.connect([(joining[0], last[-1])], limit)
    side = network.lanes[entry[0]].path.offset(-width / 2)
    network.intersections.append(np.concatenate([pieces[1].xy, side.xy[::-1], [tip[:2]]]))
    if rng.random() < 0.5:
        median = rng.uniform(0, 4)
        _add_carriageway(road, [divider.offset(median).reversed()], lanes, width)
    return road


def _cut_curve(path: Curve, *cuts: float) -> list[Curve]:
    """Parts of a path between distances; neighbors share a point."""
    places = np.searchsorted(path.s, cuts).tolist()
    pieces = []
    for first, last in pairwise([0, *places, len(path.s) - 1]):
        kept = slice(first, last + 1)
        pieces.append(Curve(path.xy[kept], path.yaw[kept]))
    return pieces


KINDS: dict[Callable[[Random], Road], float] = {street: 0.3, corner: 0.13, junction: 0.43, merge: 0.14}
"""Probability of each kind of road."""
