"""Shapely polygons of a scene's tensors, for what is done once per scene."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import shapely
import torch
from torch import Tensor

from lightning_cgrpo.navsim.geometry.boxes import box_corners
from lightning_cgrpo.scenes.scene import Points

Shapes = npt.NDArray[np.object_]


def polygons(points: Points) -> Shapes:
    """``[N]`` polygons."""
    given = torch.arange(points.xy.shape[1]) <= points.counts[:, None]  # and the first point again
    rings = shapely.linearrings(points.xy[given].numpy(), indices=given.nonzero()[:, 0].numpy())
    made: Shapes = shapely.polygons(rings)
    return made


def boxes(pose: Tensor, size: Tensor) -> Shapes:
    """``[...]`` rectangles of poses ``[..., 3]`` of the center and sizes ``[..., 2]`` length, width."""
    made: Shapes = shapely.polygons(box_corners(pose, size).numpy())
    return made
