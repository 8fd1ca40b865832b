"""The lane that the ego follows along its route."""

from __future__ import annotations

from dataclasses import dataclass

from lightning_cgrpo.navsim.geometry.path import Path
from lightning_cgrpo.navsim.route.centerline import lane_sequence, route_lanes, starting_lane
from lightning_cgrpo.navsim.route.road import Road
from lightning_cgrpo.navsim.route.route import correct_route
from lightning_cgrpo.scenes.scene import Scene


@dataclass(frozen=True, eq=False)
class LaneAhead:
    """The ego's lane and its successors.

    Args:
        road: the map around the ego.
        route: rows of the roadblocks of the corrected route.
        route_lanes: rows of all lanes of the route.
        lanes: rows of the lanes to follow, from the ego's lane on.
        path: centerline of these lanes.
    """

    road: Road
    route: tuple[int, ...]
    route_lanes: tuple[int, ...]
    lanes: list[int]
    path: Path


def lane_ahead(scene: Scene) -> LaneAhead:
    """Find the lanes to follow from the ego's place at t = 0.

    Raises:
        SceneError: the route is empty or has no lanes.
    """
    road = Road(scene)
    route = correct_route(road)
    on_route = route_lanes(road, route)
    lanes = lane_sequence(road, route, starting_lane(road, on_route))
    return LaneAhead(road, route, on_route, lanes, Path.along([road.centerline(lane) for lane in lanes]))
