"""From the scene's frame to the picture's: the ego at the origin, what is ahead of it up."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]

AHEAD, BEHIND, ASIDE = 110.0, 35.0, 60.0
"""Meters that are shown at most: a candidate that jumps away doesn't shrink all others to a dot."""
MARGIN = 12.0


@dataclass(frozen=True)
class View:
    """A part of the plane, seen from above.

    Args:
        origin: ``[3]`` x, y, yaw of the ego.
        low: left and lower end, meters in the picture's frame.
        high: right and upper end.
    """

    origin: Tensor
    low: tuple[float, float]
    high: tuple[float, float]

    @classmethod
    def around(cls, origin: Tensor, points: Tensor) -> View:
        """What shows the ego and points ``[..., 2]`` of the scene's frame, not all too narrow."""
        everywhere = cls(origin, (-ASIDE, -BEHIND), (ASIDE, AHEAD))
        shown = np.concatenate([everywhere.points(points).reshape(-1, 2), [[0.0, 0.0]]])
        shown = np.clip(shown[np.isfinite(shown).all(1)], everywhere.low, everywhere.high)
        low, high = shown.min(0) - MARGIN, shown.max(0) + MARGIN
        # At least a road and its sides.
        missing = np.maximum((48.0, 48.0) - (high - low), 0)
        low, high = low - missing * (0.5, 0.3), high + missing * (0.5, 0.7)
        return cls(origin, (float(low[0]), float(low[1])), (float(high[0]), float(high[1])))

    def points(self, points: Tensor) -> Array:
        """``[..., 2]`` of the scene's frame, in the picture's."""
        yaw = self.origin[2].cpu().double()
        dx, dy = (points.detach().cpu().double() - self.origin[:2].cpu().double()).unbind(-1)
        ahead, left = dx * yaw.cos() + dy * yaw.sin(), dy * yaw.cos() - dx * yaw.sin()
        return np.stack([-left.numpy(), ahead.numpy()], -1)

    def sees(self, points: Array) -> bool:
        """Whether the rectangle around points ``[n, 2]`` of the picture's frame meets the view."""
        return bool((points.max(0) >= self.low).all() and (points.min(0) <= self.high).all())
