"""Boxes and segments; shared boundary points *touch*, as in shapely's ``intersects``."""

from __future__ import annotations

from functools import reduce

import torch
from torch import Tensor

SLACK = 1e-3  # meters by which boxes grow before a coarse test, so that rounding removes no candidate of the exact test


def wrap_angle(angle: Tensor) -> Tensor:
    """Wrap to [-pi, pi]."""
    return torch.atan2(angle.sin(), angle.cos())


def box_corners(pose: Tensor, size: Tensor) -> Tensor:
    """Corners ``[..., 4, 2]`` front left, rear left, rear right, front right.

    Poses ``[..., 3]`` are x, y, yaw of the center; sizes ``[..., 2]`` are length, width.
    """
    cos = pose[..., 2].cos()
    sin = pose[..., 2].sin()
    ahead = torch.stack([cos, sin], -1) * (size[..., :1] / 2)
    left = torch.stack([-sin, cos], -1) * (size[..., 1:] / 2)
    center = pose[..., :2]
    return torch.stack([center + ahead + left, center - ahead + left, center - ahead - left, center + ahead - left], -2)


def bounds(points: Tensor) -> Tensor:
    """Bounds ``[..., 4]`` of points ``[..., V, 2]``: least x, y, greatest x, y."""
    return torch.cat([points.amin(-2), points.amax(-2)], -1)


def grown(box: Tensor, margin: Tensor | float) -> Tensor:
    """Bounds ``[..., 4]`` with a margin on all sides."""
    return box + margin * box.new_tensor([-1.0, -1.0, 1.0, 1.0])


def bounds_touch(a: Tensor, b: Tensor) -> Tensor:
    """``[...]`` bool: bounds ``[..., 4]`` share a point."""
    return (a[..., 0] <= b[..., 2]) & (b[..., 0] <= a[..., 2]) & (a[..., 1] <= b[..., 3]) & (b[..., 1] <= a[..., 3])


def dot(a: Tensor, b: Tensor) -> Tensor:
    """``[...]`` of ``[..., 2]``; written out, because PyTorch sums two numbers slowly."""
    return a[..., 0] * b[..., 0] + a[..., 1] * b[..., 1]


def cross(a: Tensor, b: Tensor) -> Tensor:
    """``[...]`` of vectors ``[..., 2]``: positive where b points left of a."""
    return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]


def boxes_touch(a: Tensor, b: Tensor) -> Tensor:
    """Return ``[...]`` bool for rectangles ``[..., 4, 2]``, corners in order."""
    return ~(_are_separated(a, a, b) | _are_separated(b, a, b))


def segments_touch_boxes(start: Tensor, end: Tensor, box: Tensor) -> Tensor:
    """Return ``[...]`` bool for segments ``[..., 2]`` and rectangles ``[..., 4, 2]``."""
    along = end - start
    low, high = _least_and_greatest([cross(along, box[..., corner, :] - start) for corner in range(4)])
    return ~((low > 0) | (high < 0) | _are_separated(box, torch.stack([start, end], -2), box))


def _are_separated(axes: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """``[...]`` bool: projected on some side of the rectangle ``axes``, ``a`` and ``b`` are disjoint."""
    apart = []
    for corner in (0, 1):
        axis = axes[..., corner, :] - axes[..., corner + 1, :]
        low_a, high_a = _least_and_greatest([dot(a[..., i, :], axis) for i in range(a.shape[-2])])
        low_b, high_b = _least_and_greatest([dot(b[..., i, :], axis) for i in range(b.shape[-2])])
        apart.append((low_a > high_b) | (low_b > high_a))
    return apart[0] | apart[1]


def _least_and_greatest(values: list[Tensor]) -> tuple[Tensor, Tensor]:
    return reduce(torch.minimum, values), reduce(torch.maximum, values)
