"""A map as numpy arrays and shapely polygons."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import shapely

from driving_scenes.scene import Scene
from driving_scenes.vehicle import centers, corners
from navsim_score.geometry.lane_path import Array, headings, wrap
from navsim_score.geometry.shapes import Shapes, polygons

MAP_RADIUS = 100.0  # half the side, in meters, of the square around the ego that polygons of the map must touch


class Road:
    """A scene's map and the ego's place on it."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.lanes = scene.map.lanes
        self.blocks = scene.map.roadblocks
        pose = scene.ego.poses[-1]
        self.position: Array = pose[:2].numpy()
        self.yaw = float(pose[2])
        self.center: Array = centers(pose).numpy()

    @cached_property
    def footprint(self) -> shapely.Polygon:
        return shapely.Polygon(corners(self.scene.ego.poses[-1]).numpy())

    @cached_property
    def lane_polygons(self) -> Shapes:
        return polygons(self.lanes.polygons)

    @cached_property
    def block_polygons(self) -> Shapes:
        return polygons(self.blocks.polygons)

    def centerline(self, lane: int) -> Array:
        line: Array = self.lanes.centerlines[lane].numpy()
        return line

    def length(self, lane: int) -> float:
        return float(np.linalg.norm(np.diff(self.centerline(lane), axis=0), axis=1).sum())

    def errors_to_lane(self, lane: int) -> tuple[float, float]:
        """Meters from the ego to a centerline's nearest vertex, and the absolute heading error there in radians."""
        line = self.centerline(lane)
        distances = np.linalg.norm(line - self.position, axis=1)
        nearest = distances.argmin()
        heading_error = abs(wrap(headings(line)[nearest] - self.yaw))
        return float(distances[nearest]), float(heading_error)

    def blocks_near(self, point: Array, radius: float) -> list[int]:
        """Rows of roadblocks, then of connectors, that touch the square of side 2 ``radius`` around a point."""
        near = np.flatnonzero(shapely.intersects(self.block_polygons, _square_around(point, radius)))
        connector = self.blocks.connector.numpy()[near]
        return [*near[~connector].tolist(), *near[connector].tolist()]

    def lanes_under(self) -> list[int]:
        """Lanes under the ego's rear axle, in the order of the official tree (``pdm_occupancy_map.py``).

        The order decides between equally good lanes.
        """
        blocks = self.blocks_near(self.center, MAP_RADIUS)
        streets = [block for block in blocks if not self.blocks.connector[block]]
        lanes: list[int] = []
        for block in blocks:
            lanes += self.blocks.lanes[block]
        areas = []
        for layer in (self.scene.map.intersections, self.scene.map.carparks):
            shapes = polygons(layer.polygons)
            areas.append(shapes[shapely.intersects(shapes, _square_around(self.center, MAP_RADIUS))])
        # The tree has streets, lanes and areas; the order of its answers depends on all of them.
        tree = shapely.STRtree(np.concatenate([self.block_polygons[streets], self.lane_polygons[lanes], *areas]))
        rows = tree.query(shapely.Point(self.position), predicate="intersects") - len(streets)
        return [lanes[row] for row in rows if 0 <= row < len(lanes)]


def _square_around(center: Array, radius: float) -> shapely.Polygon:
    return shapely.box(*(center - radius), *(center + radius))
