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
    dx, dy = bx - ax, by - ay
    cos, sin = (aux * bux + auy * buy).abs(), (aux * buy - auy * bux).abs()
    return (
        ((aux * dx + auy * dy).abs() <= al + bl * cos + bw * sin)
        & ((aux * dy - auy * dx).abs() <= aw + bl * sin + bw * cos)
        & ((bux * dx + buy * dy).abs() <= bl + al * cos + aw * sin)
        & ((bux * dy - buy * dx).abs() <= bw + al * sin + aw * cos)
    )


def distance(a: Tensor, b: Tensor) -> Tensor:
    """``[...]`` meters; 0 where rectangles touch."""
    # The nearest points of two disjoint convex polygons include a corner of one polygon.
    apart = torch.minimum(_to_corners(a, b), _to_corners(b, a))
    return torch.where(touch(a, b), 0, apart)


def vertical_extent(a: Tensor) -> Tensor:
    """Half the extent ``[...]`` in y."""
    return a[..., 4] * a[..., 3].abs() + a[..., 5] * a[..., 2].abs()


def _to_corners(a: Tensor, b: Tensor) -> Tensor:
    ax, ay, aux, auy, al, aw = a.unbind(-1)
    bx, by, bux, buy, bl, bw = b.unbind(-1)
    dx, dy = bx - ax, by - ay
    along, across = aux * dx + auy * dy, aux * dy - auy * dx
    cos, sin = aux * bux + auy * buy, aux * buy - auy * bux
    ahead, left = (bl * cos, bl * sin), (-bw * sin, bw * cos)
    squares = []
    for forward, sideways in ((1, 1), (-1, 1), (-1, -1), (1, -1)):
        x = (along + forward * ahead[0] + sideways * left[0]).abs() - al
        y = (across + forward * ahead[1] + sideways * left[1]).abs() - aw
        squares.append(x.clamp(min=0).square() + y.clamp(min=0).square())
    return reduce(torch.minimum, squares).sqrt()
