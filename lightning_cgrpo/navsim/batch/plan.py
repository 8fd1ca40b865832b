"""The expert's plan of a scene."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Plan:
    """What the expert does in a scene.

    Args:
        trajectory: ``[41, 3]`` x, y, yaw of the rear axle in the scene's frame, at 10 Hz.
        centerline: ``[C, 2]`` of the route, from where the ego's lane begins.
        route_lanes: rows of the lanes of the corrected route.
    """

    trajectory: Tensor
    centerline: Tensor
    route_lanes: tuple[int, ...]
