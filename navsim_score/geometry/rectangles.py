"""Touching and distance of rectangles.

A rectangle is ``[..., 6]``: center x, y; unit vector x, y along it; half its length; half its width.
"""

from __future__ import annotations

from functools import reduce

import torch
from torch import Tensor

COLUMNS = 6


def from_boxes(pose: Tensor, size: Tensor) -> Tensor:
    """Rectangles from center poses ``[..., 3]`` and sizes ``[..., 2]`` length, width."""
    yaw = pose[..., 2:]
    half = (size / 2).expand(*pose.shape[:-1], 2)
    return torch.cat([pose[..., :2], yaw.cos(), yaw.sin(), half], -1)


def touch(a: Tensor, b: Tensor) -> Tensor:
    """``[...]`` bool: no line along a side separates the rectangles."""
    ax, ay, aux, auy, al, aw = a.unbind(-1)
    bx, by, bux, buy, bl, bw = b.unbind(-1)
    dx = bx - ax
    dy = by - ay
    cos = (aux * bux + auy * buy).abs()
    sin = (aux * buy - auy * bux).abs()
    # Along each of the four sides' directions, the centers are at most as far apart as both extents allow.
    return (
        ((aux * dx + auy * dy).abs() <= al + bl * cos + bw * sin)
        & ((aux * dy - auy * dx).abs() <= aw + bl * sin + bw * cos)
        & ((bux * dx + buy * dy).abs() <= bl + al * cos + aw * sin)
        & ((bux * dy - buy * dx).abs() <= bw + al * sin + aw * cos)
    )


def distance(a: Tensor, b: Tensor) -> Tensor:
    """``[...]`` meters; 0 where rectangles touch."""
    # The nearest points of two disjoint convex polygons include a corner of one polygon.
    apart = torch.minimum(_distance_to_corners(a, b), _distance_to_corners(b, a))
    return torch.where(touch(a, b), 0, apart)


def vertical_extent(a: Tensor) -> Tensor:
    """Half the extent ``[...]`` in y."""
    return a[..., 4] * a[..., 3].abs() + a[..., 5] * a[..., 2].abs()


def _distance_to_corners(a: Tensor, b: Tensor) -> Tensor:
    """Meters ``[...]`` from rectangle a to the nearest corner of b."""
    ax, ay, aux, auy, al, aw = a.unbind(-1)
    bx, by, bux, buy, bl, bw = b.unbind(-1)
    # The center and the half sides of b in the frame of a.
    dx = bx - ax
    dy = by - ay
    along = aux * dx + auy * dy
    across = aux * dy - auy * dx
    cos = aux * bux + auy * buy
    sin = aux * buy - auy * bux
    ahead_x, ahead_y = bl * cos, bl * sin
    left_x, left_y = -bw * sin, bw * cos
    squares = []
    for forward, sideways in ((1, 1), (-1, 1), (-1, -1), (1, -1)):
        # How far the corner is beyond a's sides.
        x = (along + forward * ahead_x + sideways * left_x).abs() - al
        y = (across + forward * ahead_y + sideways * left_y).abs() - aw
        squares.append(x.clamp(min=0).square() + y.clamp(min=0).square())
    return reduce(torch.minimum, squares).sqrt()
