"""Polygons that many points are compared with at once.

Each polygon is cut into slabs of equal width along its longer side. A slab knows the edges that reach into it, so that
a point is compared with a few edges only, and a range within which it needn't be compared at all.

Below, u is the coordinate along which a polygon is cut, x or y, and w is the other one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_cgrpo.navsim.geometry.boxes import SLACK, bounds, bounds_touch, expand, segments_touch_boxes, starts

EDGES_PER_SLAB = 2
"""A polygon has at least as many slabs as that this many edges start in one, on average,"""
SLAB_WIDTH = 1.0
"""and at least so many that none is wider, in meters,"""
MOST_SLABS = 256
"""but not more."""


@dataclass(frozen=True, eq=False)
class Polygons:
    """N polygons of any number of corners.

    Args:
        bounds: ``[N, 4]``.
        upright: ``[N]`` bool, u is y.
        low: ``[N]`` u where the first slab starts.
        scale: ``[N]`` slabs per meter.
        first_slab: ``[N + 1]`` int64.
        ranges: ``[slabs, 4]`` of w: only between the first and the last can a point be in the polygon, and between the
            middle two it is.
        first_edge: ``[slabs + 1]`` int64.
        edges: ``[E, 4]`` u, w of the start and u, w of the end, by slab.
        outline: ``[O, 2, 2]`` every edge once, in x and y, by polygon.
        first_outline: ``[N + 1]`` int64.
    """

    bounds: Tensor
    upright: Tensor
    low: Tensor
    scale: Tensor
    first_slab: Tensor
    ranges: Tensor
    first_edge: Tensor
    edges: Tensor
    outline: Tensor
    first_outline: Tensor

    def __len__(self) -> int:
        return len(self.bounds)

    @classmethod
    def of(cls, polygons: Sequence[Tensor]) -> Polygons:
        """Of polygons ``[n, V, 2]``, filled up with their first corner; V may differ from one tensor to the next."""
        segments = [torch.stack([polygon, polygon.roll(-1, 1)], 2) for polygon in polygons]
        real = [(segment[:, :, 0] != segment[:, :, 1]).any(-1) for segment in segments]
        outline = torch.cat([segment[keep] for segment, keep in zip(segments, real, strict=True)])
        counts = torch.cat([keep.sum(1) for keep in real])
        of_edge = torch.repeat_interleave(counts)
        box = torch.cat([bounds(polygon) for polygon in polygons])

        width, height = (box[:, 2:] - box[:, :2]).unbind(1)
        upright, extent = height > width, torch.maximum(width, height)
        low = torch.where(upright, box[:, 1], box[:, 0])
        slabs = torch.maximum(counts // EDGES_PER_SLAB, (extent / SLAB_WIDTH).long()).clamp(1, MOST_SLABS)
        scale = slabs / extent.clamp(min=SLACK)
        first_slab = starts(slabs)

        edges = torch.where(upright[of_edge, None, None], outline.flip(-1), outline)
        slab = ((edges[..., 0] - low[of_edge, None]) * scale[of_edge, None]).long()
        slab = torch.minimum(slab, slabs[of_edge, None] - 1)
        edge, step = expand(slab.amax(1) - slab.amin(1) + 1)  # an edge is in several slabs
        step += slab.amin(1)[edge]
        slab, order = (first_slab[of_edge[edge]] + step).sort(stable=True)
        edge, step = edge[order], step[order]
        edges = edges[edge].flatten(1)
        first_edge = starts(torch.bincount(slab, minlength=int(first_slab[-1])))
        begin = low[of_edge[edge]] + step / scale[of_edge[edge]]
        ranges = _ranges(edges, first_edge, slab, begin, begin + 1 / scale[of_edge[edge]])
        return cls(box, upright, low, scale, first_slab, ranges, first_edge, edges, outline, starts(counts))

    def contain(self, points: Tensor, row: Tensor) -> Tensor:
        """Whether points are in polygons and not on the boundary, which counts by even and odd.

        Args:
            points: ``[M, K, 2]``.
            row: ``[M]`` int64, the polygon that each K points are compared with.

        Returns:
            ``[M, K]`` bool.
        """
        x, y = points.unbind(-1)
        low_x, low_y, high_x, high_y = self.bounds[row][:, None].unbind(-1)
        inside = (x > low_x) & (x < high_x) & (y > low_y) & (y < high_y)
        pair, point = inside.nonzero().unbind(1)
        upright, x, y = self.upright[row][pair], x[inside], y[inside]
        u, w = torch.where(upright, y, x), torch.where(upright, x, y)
        slab = ((u - self.low[row][pair]) * self.scale[row][pair]).long() + self.first_slab[row][pair]
        slab = torch.minimum(slab, (self.first_slab[row + 1] - 1)[pair])
        low, core_low, core_high, high = self.ranges[slab].unbind(1)
        unclear = ((w > low) & (w < high) & ((w <= core_low) | (w >= core_high))).nonzero()[:, 0]
        found = (w > core_low) & (w < core_high)
        found[unclear] = _odd(self.edges, self.first_edge, u[unclear], w[unclear], slab[unclear])
        inside[pair, point] = found
        return inside

    def touch_boxes(self, boxes: Tensor, row: Tensor) -> Tensor:
        """Whether rectangles touch polygons.

        Args:
            boxes: ``[M, 4, 2]`` corners in order.
            row: ``[M]`` int64, the polygon that each is compared with.

        Returns:
            ``[M]`` bool.
        """
        touching = self.contain(boxes[:, :1], row)[:, 0]
        begin = self.first_outline[row]
        box, step = expand(self.first_outline[row + 1] - begin)
        segments = self.outline[begin[box] + step]
        near = bounds_touch(bounds(segments), bounds(boxes)[box]).nonzero()[:, 0]
        box, segments = box[near], segments[near]
        touching[box[segments_touch_boxes(segments[:, 0], segments[:, 1], boxes[box])]] = True
        return touching


def _odd(edges: Tensor, first_edge: Tensor, u: Tensor, w: Tensor, slab: Tensor) -> Tensor:
    """Whether points are beyond an odd number of the edges of their slab, and on none of them."""
    begin = first_edge[slab]
    point, step = expand(first_edge[slab + 1] - begin)
    start_u, start_w, end_u, end_w = edges.index_select(0, begin[point] + step).unbind(1)
    to_u, to_w = u[point], w[point]
    side = (end_u - start_u) * (to_w - start_w) - (end_w - start_w) * (to_u - start_u)
    up = end_u > to_u
    crossed = ((start_u > to_u) != up) & (torch.where(up, side, -side) > 0)
    odd = torch.bincount(point[crossed], minlength=len(u)) % 2 == 1
    on = (side == 0).nonzero()[:, 0]
    between = ((start_u - to_u) * (end_u - to_u) <= 0) & ((start_w - to_w) * (end_w - to_w) <= 0)
    odd[point[on[between[on]]]] = False
    return odd


def _ranges(edges: Tensor, first_edge: Tensor, slab: Tensor, begin: Tensor, end: Tensor) -> Tensor:
    """The ranges of slabs, see `Polygons`.

    Args:
        edges: ``[E, 4]``.
        first_edge: ``[slabs + 1]``.
        slab: ``[E]`` the slab that an edge is in,
        begin: ``[E]`` where that begins
        end: ``[E]`` and ends.
    """
    # Between which w each edge is while it is in its slab; in the order in which a line along w enters them.
    start_u, start_w, end_u, end_w = edges.unbind(1)
    run = end_u - start_u
    share = (torch.stack([begin - SLACK, end + SLACK]) - start_u) / torch.where(run == 0, 1, run)
    share = torch.where(run == 0, share.new_tensor([[0.0], [1.0]]), share.clamp(0, 1))
    met = start_w + share * (end_w - start_w)
    order = met.amin(0).argsort(stable=True)
    order = order[slab[order].argsort(stable=True)]
    low, high = met.amin(0)[order] - SLACK, met.amax(0)[order] + SLACK

    # The widest gap that no edge of the slab enters is either all in the polygon or all outside.
    covered = _running_max(high, slab)
    gap = torch.where(slab[1:] == slab[:-1], low[1:] - covered[:-1], 0)
    slabs = len(first_edge) - 1
    widest = gap.new_zeros(slabs).scatter_reduce_(0, slab[1:], gap, "amax")
    candidates = ((gap > 0) & (gap == widest[slab[1:]])).nonzero()[:, 0]
    chosen = candidates.new_full((slabs,), len(gap)).scatter_reduce_(0, slab[1:][candidates], candidates, "amin")
    chosen = chosen[chosen < len(gap)]
    core = torch.stack([covered[chosen], low[chosen + 1]], 1)
    of_slab = slab[chosen]
    filled = _odd(edges, first_edge, (begin + end)[chosen] / 2, core.mean(1), of_slab)

    found = core.new_tensor([math.inf, math.inf, -math.inf, -math.inf]).repeat(slabs, 1)
    found[:, 0].scatter_reduce_(0, slab, low, "amin")
    found[:, 3].scatter_reduce_(0, slab, high, "amax")
    found[of_slab[filled], 1:3] = core[filled]
    return found


def _running_max(values: Tensor, group: Tensor) -> Tensor:
    """The greatest value so far within each group; the rows of a group follow one another."""
    rank = torch.empty_like(group)
    rank[values.argsort()] = torch.arange(len(values), device=values.device)
    most = (group * len(values) + rank).cummax(0).values - group * len(values)
    return values[rank.argsort()][most]
