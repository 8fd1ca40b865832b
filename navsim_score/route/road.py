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
        self.lanes, self.blocks = scene.map.lanes, scene.map.roadblocks
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

    def errors(self, lane: int) -> tuple[float, float]:
        """Meters from the ego to a centerline's nearest vertex, and the absolute heading error there in radians."""
        line = self.centerline(lane)
        distances = np.linalg.norm(line - self.position, axis=1)
        nearest = distances.argmin()
        return float(distances[nearest]), float(abs(wrap(headings(line)[nearest] - self.yaw)))

    def blocks_near(self, point: Array, radius: float) -> list[int]:
        """Rows of roadblocks, then of connectors, that touch the square of side 2 ``radius`` around a point."""
        near = np.flatnonzero(shapely.intersects(self.block_polygons, _square(point, radius)))
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
        areas = [polygons(kind.polygons) for kind in (self.scene.map.intersections, self.scene.map.carparks)]
        areas = [area[shapely.intersects(area, _square(self.center, MAP_RADIUS))] for area in areas]
        tree = shapely.STRtree(np.concatenate([self.block_polygons[streets], self.lane_polygons[lanes], *areas]))
        rows = tree.query(shapely.Point(self.position), predicate="intersects") - len(streets)
        return [lanes[row] for row in rows if 0 <= row < len(lanes)]


def _square(center: Array, radius: float) -> shapely.Polygon:
    return shapely.box(*(center - radius), *(center + radius))
