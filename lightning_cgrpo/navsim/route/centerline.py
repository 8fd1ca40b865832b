"""Which lanes the ego follows along its route.

See docs/navsim_score.md §12; officially abstract_pdm_planner.py, dijkstra.py.
"""

from __future__ import annotations

import numpy as np
import shapely

from lightning_cgrpo.navsim.route.road import Road
from lightning_cgrpo.scenes.json_fields import SceneError

DEPTH = 30
"""Roadblocks that the centerline leads through, at most."""


def route_lanes(road: Road, route: tuple[int, ...]) -> tuple[int, ...]:
    """Lanes of the route's roadblocks, each once."""
    return tuple(dict.fromkeys(lane for block in route for lane in road.blocks.lanes[block]))


def starting_lane(road: Road, lanes: tuple[int, ...]) -> int:
    """The one of these lanes that the ego starts in.

    Raises:
        SceneError: there are none.
    """
    if not lanes:
        raise SceneError(f"{road.scene.name}: route: Expected roadblocks with lanes, but got none that has any.")
    under = [lane for lane in road.lanes_under() if lane in lanes]
    if under:
        return under[int(np.argmin([road.errors(lane)[1] for lane in under]))]
    polygons = road.lane_polygons[list(lanes)]
    containing = shapely.contains(polygons, shapely.Point(road.center))
    return lanes[
        int(np.argmax(containing) if containing.any() else shapely.distance(polygons, road.footprint).argmin())
    ]


def lane_sequence(road: Road, route: tuple[int, ...], start: int) -> list[int]:
    """The shortest way over lanes of the route to its last roadblock, or else one that is as long as possible.

    Args:
        road: the map.
        route: roadblocks.
        start: lane of one of them.
    """
    first = route.index(int(road.lanes.roadblock[start])) if int(road.lanes.roadblock[start]) in route else 0
    goal = route[first : first + DEPTH][-1]
    allowed = set(route_lanes(road, route))
    # Of equally near lanes the one that has waited longest is next: a dict keeps the order in which lanes were added.
    waiting = {start: 1.0}
    depth = {start: 1}
    parent = {start: start}
    done: dict[int, float] = {}
    end = None
    while waiting:
        lane = min(waiting, key=lambda candidate: waiting[candidate])
        distance = waiting.pop(lane)
        if int(road.lanes.roadblock[lane]) == goal:
            end = lane
            break
        done[lane] = distance
        for following in road.lanes.outgoing[lane]:
            if following not in allowed or following in done:
                continue
            further = distance + road.length(following)
            if further < waiting.get(following, np.inf):
                waiting[following] = further
                depth[following] = depth[lane] + 1
                parent[following] = lane
    if end is None:
        end = min(done, key=lambda lane: (-depth[lane], done[lane]))
    way = [end]
    while way[-1] != start:
        way.append(parent[way[-1]])
    return way[::-1]
