"""The mission's route, corrected for a wrong start, gaps or crossings.

docs/navsim_score_scenes.md §12; officially route_utils.py and bfs_roadblock.py.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise

import numpy as np
import shapely

from driving_scenes.json_fields import SceneError
from navsim_score.route.road import Road

NEAR = 1.0  # half the side, in meters, of the square around the ego that the ego's roadblock touches
MOST_HEADING_ERROR = np.pi / 4
MOST_DISPLACEMENT = 3.0
DEPTH_BACKWARD = 15
DEPTH_FORWARD = 30
LOOP_AREA = 1.0  # square meters; connectors of a route that share a larger area form a loop


def correct_route(road: Road) -> tuple[int, ...]:
    """Rows of roadblocks to drive along, in order, without repetition."""
    scene = road.scene
    if not scene.route:
        raise SceneError(f"{scene.name}: route: Expected at least one roadblock, but got none.")
    if not road.blocks.ids:
        raise SceneError(f"{scene.name}: map.roadblocks: Expected at least one roadblock, but got none.")
    route = list(dict.fromkeys(scene.route))
    start, candidates = _starting_block(road, route)
    if start not in route:
        route = _led_to_start(road, route, start, candidates)
    route = _with_gaps_filled(road, route)
    return tuple(dict.fromkeys(_without_loop(road, route)))


def _starting_block(road: Road, route: Collection[int]) -> tuple[int, list[int]]:
    """The ego's likeliest roadblock, and the candidates from which it was chosen."""
    candidates = road.blocks_near(road.position, NEAR) or _nearest_blocks(road)
    on_route: list[tuple[float, int]] = []
    off_route: list[tuple[float, int]] = []
    closest = []
    for block in candidates:
        errors = [road.errors_to_lane(lane) for lane in road.blocks.lanes[block]]
        closest.append((min((distance for distance, _ in errors), default=np.inf), block))
        fitting = on_route if block in route else off_route
        for distance, heading in errors:
            if heading < MOST_HEADING_ERROR and distance < MOST_DISPLACEMENT:
                fitting.append((distance, block))
    # Roadblocks of the route whose lanes fit come first, then other roadblocks whose lanes fit.
    best = on_route or off_route or closest
    _, likeliest = min(best, key=lambda pair: pair[0])
    return likeliest, [block for _, block in best]


def _nearest_blocks(road: Road) -> list[int]:
    """The nearest roadblock and roadblock connector, if any."""
    distances = shapely.distance(road.block_polygons, shapely.Point(road.position))
    connector = road.blocks.connector.numpy()
    nearest = []
    for layer in (~connector, connector):
        if layer.any():
            nearest.append(int(np.where(layer, distances, np.inf).argmin()))
    return nearest


def _led_to_start(road: Road, route: list[int], start: int, candidates: Sequence[int]) -> list[int]:
    """Lead from a candidate to the route's first roadblock, else from ``start`` to one of the first 3, if possible."""
    before = shortest_way(road.blocks.incoming, route[0], candidates, DEPTH_BACKWARD)
    if before is not None:
        return before[:0:-1] + route
    ahead = shortest_way(road.blocks.outgoing, start, route[:3], DEPTH_FORWARD)
    if ahead is not None:
        return ahead + route[route.index(ahead[-1]) + 1 :]
    return route


def _with_gaps_filled(road: Road, route: list[int]) -> list[int]:
    filled = route[:1]
    for block, following in pairwise(route):
        if block not in road.blocks.incoming[following]:
            way = shortest_way(road.blocks.outgoing, block, [following], DEPTH_FORWARD) or []
            filled += way[1:-1]
        filled.append(following)
    return filled


def _without_loop(road: Road, route: list[int]) -> list[int]:
    """The route up to its first self-crossing; crossings are in junctions, so only connectors are compared."""
    passed: list[int] = []
    for number, block in enumerate(route):
        if not road.blocks.connector[block]:
            continue
        polygon = road.block_polygons[block]
        if any(other.intersection(polygon).area > LOOP_AREA for other in road.block_polygons[passed]):
            return route[:number]
        passed.append(block)
    return route


def shortest_way(
    neighbors: Sequence[Sequence[int]], start: int, targets: Collection[int], depth: int
) -> list[int] | None:
    """The way of fewest roadblocks, at most ``depth`` with both ends, from a roadblock to any target, or None.

    The official search takes exponential time. This search finds the same ways: the end is the first target reached on
    its level, and a roadblock's parent is the last to reach it.
    """
    level = [start]  # in the order of the first reach
    latest = [start]  # in the order of the last reach
    parents: list[dict[int, int]] = []
    for _ in range(depth):
        # If the level has a target, follow the parents back.
        for block in level:
            if block in targets:
                way = [block]
                for parent in reversed(parents):
                    way.append(parent[way[-1]])
                return way[::-1]
        # Whoever reaches a roadblock last is its parent, and roadblocks are in the order of their last reach.
        parent_of: dict[int, int] = {}
        for block in latest:
            for following in neighbors[block]:
                parent_of.pop(following, None)
                parent_of[following] = block
        parents.append(parent_of)
        latest = list(parent_of)
        following_level: dict[int, None] = {}
        for block in level:
            following_level |= dict.fromkeys(neighbors[block])
        level = list(following_level)
    return None
