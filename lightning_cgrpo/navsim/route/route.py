"""The mission's route, corrected where it doesn't begin at the ego, has gaps, or crosses itself.

See docs/navsim_score.md §12; officially route_utils.py and bfs_roadblock.py.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import shapely

from lightning_cgrpo.navsim.route.road import Road
from lightning_cgrpo.scenes.json_fields import SceneError

NEAR = 1.0
"""Half the side, in meters, of the square in which the ego's roadblock is looked for."""
MOST_HEADING_ERROR = np.pi / 4
MOST_DISPLACEMENT = 3.0
DEPTH_BACKWARD = 15
DEPTH_FORWARD = 30
LOOP_AREA = 1.0
"""Connectors of a route that share more square meters than this form a loop."""


def correct_route(road: Road) -> tuple[int, ...]:
    """The roadblocks to drive along, in order, each once.

    Raises:
        SceneError: the scene has no route, or its map no roadblocks.
    """
    scene = road.scene
    if not scene.route:
        raise SceneError(f"{scene.name}: route: Expected at least one roadblock, but got none.")
    if not road.blocks.ids:
        raise SceneError(f"{scene.name}: map.roadblocks: Expected at least one roadblock, but got none.")
    route = list(dict.fromkeys(scene.route))
    start, candidates = _start(road, route)
    if start not in route:
        route = _from_start(road, route, start, candidates)
    route = _with_gaps_filled(road, route)
    return tuple(dict.fromkeys(_without_loop(road, route)))


def _start(road: Road, route: Collection[int]) -> tuple[int, list[int]]:
    """The roadblock that the ego most likely is in, and all that it may be in."""
    candidates = road.blocks_near(road.position, NEAR) or _nearest(road)
    on_route: list[tuple[float, int]] = []
    off_route: list[tuple[float, int]] = []
    closest = []
    for block in candidates:
        errors = [road.errors(lane) for lane in road.blocks.lanes[block]]
        closest.append((min((distance for distance, _ in errors), default=np.inf), block))
        fitting = on_route if block in route else off_route
        fitting += [
            (distance, block)
            for distance, heading in errors
            if heading < MOST_HEADING_ERROR and distance < MOST_DISPLACEMENT
        ]
    best = on_route or off_route or closest
    return min(best, key=lambda found: found[0])[1], [block for _, block in best]


def _nearest(road: Road) -> list[int]:
    """The nearest roadblock and the nearest roadblock connector, if there are any."""
    distances = shapely.distance(road.block_polygons, shapely.Point(road.position))
    found = []
    for layer in (~road.blocks.connector.numpy(), road.blocks.connector.numpy()):
        if layer.any():
            found.append(int(np.where(layer, distances, np.inf).argmin()))
    return found


def _from_start(road: Road, route: list[int], start: int, candidates: Sequence[int]) -> list[int]:
    """A route that also leads from the ego to the mission's, if there is a way."""
    before = search(road.blocks.incoming, route[0], candidates, DEPTH_BACKWARD)
    if before is not None:
        return before[:0:-1] + route
    ahead = search(road.blocks.outgoing, start, route[:3], DEPTH_FORWARD)
    if ahead is not None:
        return ahead + route[route.index(ahead[-1]) + 1 :]
    return route


def _with_gaps_filled(road: Road, route: list[int]) -> list[int]:
    filled = []
    for block, following in zip(route, [*route[1:], None], strict=True):
        filled.append(block)
        if following is None or block in road.blocks.incoming[following]:
            continue
        between = search(road.blocks.outgoing, block, [following], DEPTH_FORWARD)
        if between is not None:
            filled += between[1:-1]
    return filled


def _without_loop(road: Road, route: list[int]) -> list[int]:
    """The route up to where it crosses itself, which it can only do in junctions."""
    passed: list[int] = []
    for number, block in enumerate(route):
        if not road.blocks.connector[block]:
            continue
        polygon = road.block_polygons[block]
        if any(other.intersection(polygon).area > LOOP_AREA for other in road.block_polygons[passed]):
            return route[:number]
        passed.append(block)
    return route


def search(neighbors: Sequence[Sequence[int]], start: int, targets: Collection[int], depth: int) -> list[int] | None:
    """The way with fewest roadblocks from a roadblock to any of some others, if it has at most ``depth`` of them.

    Officially roadblocks are visited as often as they are reached, which takes exponential time. The ways found are
    the same here: of a level, the first target in the order of being reached is the end, and each roadblock's parent
    is the last one to reach it.
    """
    level = [start]  # in the order of being first reached
    latest = [start]  # in the order of being last reached
    parents: list[dict[int, int]] = []
    for _ in range(depth):
        for block in level:
            if block in targets:
                way = [block]
                for parent in reversed(parents):
                    way.append(parent[way[-1]])
                return way[::-1]
        reached = [(following, block) for block in latest for following in neighbors[block]]
        parents.append(dict(reached))
        latest = list(dict.fromkeys(following for following, _ in reversed(reached)))[::-1]
        level = list(dict.fromkeys(following for block in level for following in neighbors[block]))
    return None
