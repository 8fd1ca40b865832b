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
    """``[N]`` polygons with their holes and further parts, without the padding."""
    closed = torch.arange(points.xy.shape[1]) <= points.counts[:, None]  # the first point again at the end
    rings = shapely.linearrings(points.xy[closed].numpy(), indices=closed.nonzero()[:, 0].numpy())
    shapes: Shapes = shapely.polygons(rings)
    for row, ring in points.rings:
        shapes[row] = _with_ring(shapes[row], ring.numpy())
    return shapes


def _with_ring(
    shape: shapely.Polygon | shapely.MultiPolygon, ring: np.ndarray
) -> shapely.Polygon | shapely.MultiPolygon:
    """Add a hole to the part that surrounds the ring, or else the ring as a further part."""
    parts = list(shapely.get_parts(shape))
    inner = shapely.Polygon(ring)
    for number, part in enumerate(parts):
        if shapely.Polygon(part.exterior).contains(inner):
            parts[number] = shapely.Polygon(part.exterior, [*part.interiors, ring])
            break
    else:
        parts.append(inner)
    return parts[0] if len(parts) == 1 else shapely.MultiPolygon(parts)


def boxes(pose: Tensor, size: Tensor) -> Shapes:
    """``[...]`` rectangles from center poses ``[..., 3]`` and sizes ``[..., 2]`` length, width."""
    shapes: Shapes = shapely.polygons(box_corners(pose, size).numpy())
    return shapes
