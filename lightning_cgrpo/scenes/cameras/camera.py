"""A camera: projects places to pixels."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

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
        self.height, self.width = FINENESS * height, FINENESS * width
        self.place = pose[:2] + MOUNT * np.array([math.cos(pose[2]), math.sin(pose[2])])
        cos, sin = math.cos(pose[2] + yaw), math.sin(pose[2] + yaw)
        self._axes = np.array([[cos, sin], [sin, -cos]]).T  # ahead, to the right
        self._focus = self.width / 2 / math.tan(FIELD_OF_VIEW / 2)

    def seen(self, polygons: Array) -> Iterator[tuple[int, list[float]]]:
        """Rows and outlines ``[x, y, x, y, …]`` in pixels of the visible polygons of ``[N, V, 3]``."""
        depth, right = np.moveaxis((polygons[..., :2] - self.place) @ self._axes, -1, 0)
        up = polygons[..., 2] - HEIGHT
        here = depth >= NEAR
        share = np.zeros_like(depth)
        # Where an edge meets the near plane.
        following = np.roll(depth, -1, 1)
        crosses = here != np.roll(here, -1, 1)
        share[crosses] = ((NEAR - depth) / np.where(crosses, following - depth, 1.0))[crosses]
        cut = [values + share * (np.roll(values, -1, 1) - values) for values in (depth, right, up)]
        # Each corner is followed by its edge's cut.
        depth, right, up = (
            np.stack([given, at_edge], 2).reshape(len(given), 2 * given.shape[1])
            for given, at_edge in zip((depth, right, up), cut, strict=True)
        )
        kept = np.stack([here, crosses], 2).reshape(depth.shape)
        depth = np.where(kept, depth, 1.0)
        x = self.width / 2 + self._focus * right / depth
        y = HORIZON_PLACE * self.height - self._focus * up / depth
        pixels = np.stack([x, y], 2)
        inside = np.asarray(kept.any(1))
        for values, end in ((x, self.width), (y, self.height)):
            inside &= (np.where(kept, values, np.inf).min(1) < end) & (np.where(kept, values, -np.inf).max(1) > 0)
        for row in np.flatnonzero(inside).tolist():
            yield row, pixels[row, kept[row]].ravel().tolist()


def on_ground(xy: Array) -> Array:
    """Places ``[..., 2]`` at height 0."""
    return np.concatenate([xy, np.zeros_like(xy[..., :1])], -1)
