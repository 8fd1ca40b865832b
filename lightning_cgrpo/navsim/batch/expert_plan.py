"""The expert's plan."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class ExpertPlan:
    """A scene's plan by the expert."""

    trajectory: Tensor  # [41, 3] x, y, yaw of the rear axle in the scene's frame, at 10 Hz
    centerline: Tensor  # [C, 2] centerline of the route, from the begin of the ego's lane
    route_lanes: tuple[int, ...]  # rows of the lanes of the corrected route
