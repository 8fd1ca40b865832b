"""Lanes ahead along the route. docs/navsim_score_scenes.md §12; officially abstract_pdm_planner.py, dijkstra.py."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import shapely

from driving_scenes.json_fields import SceneError
from driving_scenes.scene import Scene
from navsim_score.geometry.lane_path import LanePath
from navsim_score.route.road import Road
from navsim_score.route.route import correct_route

DEPTH = 30  # most roadblocks along the centerline


@dataclass(frozen=True, eq=False)
class LaneAhead:
    """Lanes ahead of a scene's ego."""

    road: Road  # the map around the ego
    route: tuple[int, ...]  # roadblocks of the corrected route
    route_lanes: tuple[int, ...]  # all lanes of these roadblocks
    lanes: list[int]  # the lanes to follow, beginning with the ego's lane

    @cached_property
    def path(self) -> LanePath:
        return LanePath.along([self.road.centerline(lane) for lane in self.lanes])


def lane_ahead(scene: Scene) -> LaneAhead:
    """Find the lanes from the ego along its route."""
    road = Road(scene)
    route = correct_route(road)
    lanes = _route_lanes(road, route)
    return LaneAhead(road, route, lanes, lane_sequence(road, route, _starting_lane(road, lanes)))


def _route_lanes(road: Road, route: tuple[int, ...]) -> tuple[int, ...]:
    lanes: dict[int, None] = {}  # in order, each once
    for block in route:
        lanes |= dict.fromkeys(road.blocks.lanes[block])
    return tuple(lanes)


def _starting_lane(road: Road, lanes: tuple[int, ...]) -> int:
    if not lanes:
        raise SceneError(f"{road.scene.name}: route: Expected a roadblock with lanes, but got none.")
    # Of the lanes under the ego, the lane whose heading is nearest to the ego's.
    under = [lane for lane in road.lanes_under() if lane in lanes]
    if under:
        heading_errors = [road.errors_to_lane(lane)[1] for lane in under]
        return under[int(np.argmin(heading_errors))]
    # Else the first lane that contains the ego's center, else the nearest lane.
    polygons = road.lane_polygons[list(lanes)]
    containing = shapely.contains(polygons, shapely.Point(road.center))
    if containing.any():
        return lanes[int(containing.argmax())]
    return lanes[int(shapely.distance(polygons, road.footprint).argmin())]


def lane_sequence(road: Road, route: tuple[int, ...], start: int) -> list[int]:
    """The shortest way from a lane, over the route's lanes, to the route's last roadblock, else the way of most lanes.

    Roadblocks more than `DEPTH` on are ignored.
    """
    block = int(road.lanes.roadblock[start])
    first = route.index(block) if block in route else 0
    goal = route[first : first + DEPTH][-1]
    allowed = set(_route_lanes(road, route))
    # Dijkstra's algorithm. Among equally near lanes, the lane that was reached first is next: a dict keeps the order
    # of insertion.
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
    # If the goal was not reached, the way of most lanes, and of these the shortest.
    if end is None:
        end = min(done, key=lambda lane: (-depth[lane], done[lane]))
    # From the end back to the start.
    way = [end]
    while way[-1] != start:
        way.append(parent[way[-1]])
    return way[::-1]
