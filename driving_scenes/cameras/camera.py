"""A camera: projects places to pixels."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Color = tuple[int, int, int]

SKY, GRASS = (178, 205, 232), (112, 135, 88)
AREA, ROAD, JUNCTION = (98, 94, 88), (82, 82, 86), (104, 104, 110)
LEFT_BORDER, BORDER = (240, 190, 30), (232, 232, 232)
RED, GREEN, CASE = (255, 20, 20), (10, 235, 60), (15, 15, 15)
TYPES = ((40, 95, 200), (255, 90, 150), (160, 60, 200), (255, 135, 0), (215, 200, 150), (255, 170, 60), (120, 80, 50))
"""Colors of `AGENT_TYPES`."""

FIELD_OF_VIEW = math.radians(64.0)
HORIZON_PLACE = 0.35
"""Height of the horizon, from the top (0) to the bottom (1)."""
MOUNT, HEIGHT = 1.65, 1.6
"""Meters ahead of the rear axle and above the road."""
NEAR = 0.5
"""Meters; nearer places are invisible."""
SIGHT = 95.0
"""Meters, because NAVSIM's maps beyond 100 m have only the route."""
FINENESS = 2
"""Drawn pixels per shown pixel, along each side."""


class Camera:
    """Projects places to pixels; the camera's yaw is to the left of the ego's."""

    def __init__(self, pose: Array, yaw: float, height: int, width: int) -> None:
        self.height = FINENESS * height
        self.width = FINENESS * width
        self._place = camera_place(pose)
        cos = math.cos(pose[2] + yaw)
        sin = math.sin(pose[2] + yaw)
        self._axes = np.array([[cos, sin], [sin, -cos]]).T  # ahead, to the right
        self._focus = self.width / 2 / math.tan(FIELD_OF_VIEW / 2)

    def seen(self, polygons: Polygons) -> Iterator[tuple[list[float], Color]]:
        """Outlines ``[x, y, x, y, …]`` in pixels, and colors, of the visible polygons."""
        corners, counts, colors = polygons
        if not len(corners):
            return
        # The next corner of each corner, within its polygon.
        ends = counts.cumsum()
        starts = ends - counts
        following = np.arange(1, len(corners) + 1)
        following[ends - 1] = starts
        # Meters ahead, to the right and up.
        depth, right = ((corners[:, :2] - self._place) @ self._axes).T
        up = corners[:, 2]
        is_ahead = depth >= NEAR
        # Where an edge meets the near plane.
        crosses = is_ahead != is_ahead[following]
        share = np.zeros_like(depth)
        share[crosses] = (NEAR - depth[crosses]) / (depth[following] - depth)[crosses]
        # Each corner is followed by its edge's cut.
        kept = np.stack([is_ahead, crosses], 1)
        outlines = []
        for values in (depth, right, up):
            cut = values + share * (values[following] - values)
            outlines.append(np.stack([values, cut], 1)[kept])
        depth, right, up = outlines  # [P], the corners of outlines
        # Pixels, and the outlines that are partly in the image.
        x = self.width / 2 + self._focus * right / depth
        y = HORIZON_PLACE * self.height - self._focus * up / depth
        sizes = np.add.reduceat(kept.sum(1), starts)
        shown = np.flatnonzero(sizes)
        ends = sizes.cumsum()[shown]
        starts = ends - sizes[shown]
        inside = np.ones(len(shown), bool)
        for values, end in ((x, self.width), (y, self.height)):
            if len(shown):
                inside &= (np.minimum.reduceat(values, starts) < end) & (np.maximum.reduceat(values, starts) > 0)
        pixels = np.stack([x, y], 1).ravel().tolist()
        visible = np.stack([shown, starts, ends], 1)[inside]
        for row, start, end in visible.tolist():
            yield pixels[2 * start : 2 * end], colors[row]


def camera_place(pose: Array) -> Array:
    """Place ``[2]`` of the cameras of an ego at a pose ``[3]``."""
    place: Array = pose[:2] + MOUNT * np.array([math.cos(pose[2]), math.sin(pose[2])])
    return place


class Polygons(NamedTuple):
    """N polygons of different sizes."""

    corners: Array  # [S, 3] of all polygons, in a row: x, y, and height above the cameras
    counts: Array  # [N] int64, corners of each polygon, at least 1
    colors: list[Color]

    @classmethod
    def of(cls, corners: Array, colors: list[Color]) -> Polygons:
        """From places ``[N, V, 3]``, or ``[N, V, 2]`` on the ground."""
        rows, count, axes = corners.shape
        heights = corners[..., 2] if axes == 3 else np.zeros_like(corners[..., 0])
        flat = np.empty((rows * count, 3))
        flat[:, :2] = corners[..., :2].reshape(-1, 2)
        flat[:, 2] = (heights - HEIGHT).ravel()
        return cls(flat, np.full(rows, count), colors)

    @classmethod
    def cat(cls, parts: Sequence[Polygons]) -> Polygons:
        """The parts' polygons in order."""
        colors: list[Color] = []
        for part in parts:
            colors += part.colors
        corners = np.concatenate([part.corners for part in parts])
        counts = np.concatenate([part.counts for part in parts])
        return cls(corners, counts, colors)
