"""Routes of an Argoverse 2 ego, continued beyond the log's end."""

from __future__ import annotations

import numpy as np
import shapely

from driving_scenes.scene import RoadMap
from examples.scene_sources.argoverse2.log import Array, TimedPoses, wrapped

INTERVAL = 0.1
MOST_SUCCESSORS = 12
"""Lanes beyond the log's end."""


class Router:
    """Finds routes on a map."""

    def __init__(self, road_map: RoadMap) -> None:
        lanes = road_map.lanes
        rows = range(len(lanes.ids))
        self.map = road_map
        self.polygons = shapely.STRtree([shapely.Polygon(lanes.polygons[row].numpy()) for row in rows])
        self.centerlines = np.array([shapely.LineString(lanes.centerlines[row].numpy()) for row in rows])

    def route(self, ego: TimedPoses, start: float, end: float) -> tuple[int, ...]:
        """Rows of roadblocks: under the rear axle from `start` to `end`, then the straightest successors.

        The best-aligned lane counts; without any lane, the lane nearest to the first pose.
        """
        poses = ego.at(np.arange(start, end, INTERVAL))
        taken = self._under(poses)
        lane = taken[-1]
        for _ in range(MOST_SUCCESSORS):
            successors = self.map.lanes.outgoing[lane]
            if not successors:
                break
            heading = self._end_heading(lane)
            lane = min(successors, key=lambda other: abs(wrapped(self._end_heading(other) - heading)))
            taken.append(lane)
        return tuple(dict.fromkeys(self.map.lanes.roadblock[taken].tolist()))

    def _under(self, poses: Array) -> list[int]:
        """Rows of the best-aligned lanes under poses ``[N, 3]``, as in `route`."""
        points = shapely.points(poses[:, :2])
        moments, lanes = self.polygons.query(points, predicate="intersects")
        if len(moments) == 0:
            return [int(self.polygons.nearest(points[0]))]
        lines = self.centerlines[lanes]
        along = shapely.line_locate_point(lines, points[moments])
        behind = shapely.line_interpolate_point(lines, np.maximum(along - 0.5, 0))
        ahead = shapely.line_interpolate_point(lines, np.minimum(along + 0.5, shapely.length(lines)))
        dx, dy = (shapely.get_coordinates(ahead) - shapely.get_coordinates(behind)).T
        off = np.abs(wrapped(np.arctan2(dy, dx) - poses[moments, 2]))
        order = np.lexsort([lanes, off, moments])
        first = np.unique(moments[order], return_index=True)[1]
        return list(lanes[order][first].tolist())

    def _end_heading(self, lane: int) -> float:
        before, last = self.map.lanes.centerlines[lane][-2:].tolist()
        return float(np.arctan2(last[1] - before[1], last[0] - before[0]))
