"""The picture's frame: the ego at the origin, its heading up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]

AHEAD = 110.0
BEHIND = 35.0
ASIDE = 60.0
"""Largest view in meters, because a jumping candidate must not shrink the others."""
MARGIN = 12.0
LEAST = 48.0
"""Meters around what is shown, and of the smallest view."""


@dataclass(frozen=True)
class View:
    """A rectangle of the plane, from above."""

    origin: Tensor  # [3] x, y, yaw of the ego
    low: tuple[float, float]  # left and lower end, meters in the picture's frame
    high: tuple[float, float]  # right and upper end

    @classmethod
    def around(cls, origin: Tensor, points: Tensor) -> View:
        """View the ego and points ``[..., 2]`` of the scene's frame, at least 48 m wide and high."""
        everywhere = cls(origin, (-ASIDE, -BEHIND), (ASIDE, AHEAD))
        shown = np.concatenate([everywhere.points(points).reshape(-1, 2), [[0.0, 0.0]]])
        shown = np.clip(shown[np.isfinite(shown).all(1)], everywhere.low, everywhere.high)
        low = shown.min(0) - MARGIN
        high = shown.max(0) + MARGIN
        # A small view is enlarged, more ahead than behind.
        missing = np.maximum(LEAST - (high - low), 0)
        low = low - missing * (0.5, 0.3)
        high = high + missing * (0.5, 0.7)
        return cls(origin, (float(low[0]), float(low[1])), (float(high[0]), float(high[1])))

    def points(self, points: Tensor) -> Array:
        """Transform points ``[..., 2]`` from the scene's to the picture's frame."""
        yaw = self.origin[2].cpu().double()
        dx, dy = (points.detach().cpu().double() - self.origin[:2].cpu().double()).unbind(-1)
        ahead = dx * yaw.cos() + dy * yaw.sin()
        left = dy * yaw.cos() - dx * yaw.sin()
        return np.stack([-left.numpy(), ahead.numpy()], -1)

    def sees(self, points: Array) -> bool:
        """True if the bounds of points ``[n, 2]`` in the picture's frame touch the view."""
        return bool((points.max(0) >= self.low).all() and (points.min(0) <= self.high).all())


def draw_polygons(axes: Axes, polygons: Sequence[Array], color: Any = "none", **look: Any) -> None:
    """Draw polygons ``[n, 2]`` in the picture's frame, filled with ``color``."""
    axes.add_collection(PolyCollection(polygons, facecolor=color, **look))
