"""Tensors as shapely polygons, for work done once per scene."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import shapely
import torch
from torch import Tensor

from driving_scenes.scene import Points
from navsim_score.geometry.boxes import box_corners

Shapes = npt.NDArray[np.object_]


def polygons(points: Points) -> Shapes:
    """``[N]`` polygons with their holes, without the padding."""
    closed = torch.arange(points.xy.shape[1]) <= points.counts[:, None]  # the first point again at the end
    rings = shapely.linearrings(points.xy[closed].numpy(), indices=closed.nonzero()[:, 0].numpy())
    made: Shapes = shapely.polygons(rings)
    for row, ring in points.holes:
        made[row] = shapely.Polygon(made[row].exterior, [*made[row].interiors, ring.numpy()])
    return made


def boxes(pose: Tensor, size: Tensor) -> Shapes:
    """``[...]`` rectangles from center poses ``[..., 3]`` and sizes ``[..., 2]`` length, width."""
    made: Shapes = shapely.polygons(box_corners(pose, size).numpy())
    return made
