"""Geometry of many small things at once: boxes and segments. Tensors in, tensors out, no Python loop.

Two kinds of tests, as in the official scorer: a point is *in* a polygon only if it isn't on the boundary (shapely's
``contains``; see `polygons`), and things *touch* also where they share no more than a point (shapely's ``intersects``).
"""

from __future__ import annotations

from functools import reduce

import torch
from torch import Tensor

SLACK = 1e-3
"""Meters by which boxes are grown, so that rounding doesn't cut off what an exact test is to decide."""


def wrap_angle(angle: Tensor) -> Tensor:
    """To [-pi, pi]."""
    return torch.atan2(angle.sin(), angle.cos())


def box_corners(pose: Tensor, size: Tensor) -> Tensor:
    """Corners ``[..., 4, 2]`` front left, rear left, rear right, front right.

    Args:
        pose: ``[..., 3]`` x, y, yaw of the center.
        size: ``[..., 2]`` length, width.
    """
    cos, sin = pose[..., 2].cos(), pose[..., 2].sin()
    ahead = torch.stack([cos, sin], -1) * (size[..., :1] / 2)
    left = torch.stack([-sin, cos], -1) * (size[..., 1:] / 2)
    center = pose[..., :2]
    return torch.stack([center + ahead + left, center - ahead + left, center - ahead - left, center + ahead - left], -2)


def bounds(points: Tensor) -> Tensor:
    """``[..., 4]`` least x, least y, greatest x, greatest y of points ``[..., V, 2]``."""
    return torch.cat([points.amin(-2), points.amax(-2)], -1)


def bounds_touch(a: Tensor, b: Tensor) -> Tensor:
    """Whether axis-aligned boxes ``[..., 4]``, as `bounds` makes them, touch."""
    return (a[..., 0] <= b[..., 2]) & (b[..., 0] <= a[..., 2]) & (a[..., 1] <= b[..., 3]) & (b[..., 1] <= a[..., 3])


def dot(a: Tensor, b: Tensor) -> Tensor:
    """``[...]`` of ``[..., 2]``; PyTorch is slow at sums over two numbers."""
    return a[..., 0] * b[..., 0] + a[..., 1] * b[..., 1]


def cross(a: Tensor, b: Tensor) -> Tensor:
    """``[...]`` of ``[..., 2]``: positive if b points to the left of a."""
    return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]


def boxes_touch(a: Tensor, b: Tensor) -> Tensor:
    """Whether rectangles ``[..., 4, 2]``, given by their corners in order, touch; ``[...]`` bool."""
    return ~(_separated(a, a, b) | _separated(b, a, b))


def segments_touch_boxes(start: Tensor, end: Tensor, box: Tensor) -> Tensor:
    """Whether segments from and to ``[..., 2]`` touch rectangles ``[..., 4, 2]``; ``[...]`` bool."""
    along = end - start
    low, high = _range([cross(along, box[..., corner, :] - start) for corner in range(4)])
    return ~((low > 0) | (high < 0) | _separated(box, torch.stack([start, end], -2), box))


def _separated(axes: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Whether a line along a side of a rectangle has points ``a`` on one side and ``b`` on the other."""
    apart = []
    for corner in (0, 1):
        axis = axes[..., corner, :] - axes[..., corner + 1, :]
        (low_a, high_a), (low_b, high_b) = (
            _range([dot(points[..., i, :], axis) for i in range(points.shape[-2])]) for points in (a, b)
        )
        apart.append((low_a > high_b) | (low_b > high_a))
    return apart[0] | apart[1]


def _range(values: list[Tensor]) -> tuple[Tensor, Tensor]:
    return reduce(torch.minimum, values), reduce(torch.maximum, values)


def expand(counts: Tensor) -> tuple[Tensor, Tensor]:
    """For rows that have so many items each: of all items in order, the row and the number within the row."""
    rows = torch.repeat_interleave(counts)
    firsts = counts.cumsum(0) - counts
    return rows, torch.arange(len(rows), device=counts.device) - firsts[rows]


def starts(counts: Tensor) -> Tensor:
    """``[N + 1]`` where each of N ranges of these lengths starts, and the end of the last."""
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])
