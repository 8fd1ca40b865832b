"""Polygons compared with many points at once.

A polygon is cut into slabs along its longer side. A point is compared only with its slab's edges, and with no edges
in the slab's core, known to be inside. Below, u is the coordinate along the longer side, w the other coordinate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from navsim_score.geometry.boxes import SLACK, bounds, bounds_touch, segments_touch_boxes
from navsim_score.geometry.ranges import expand, starts

EDGES_PER_SLAB = 2  # most edges per slab, on average
SLAB_WIDTH = 1.0  # widest slab, in meters
MOST_SLABS = 256  # most slabs of a polygon; takes precedence over the two limits above


@dataclass(frozen=True, eq=False)
class Polygons:
    """N polygons of any size."""

    bounds: Tensor  # [N, 4]
    upright: Tensor  # [N] bool, u is y
    low: Tensor  # [N] u where the first slab starts
    scale: Tensor  # [N] slabs per meter
    first_slab: Tensor  # [N + 1] int64
    ranges: Tensor  # [slabs, 4] low, core low, core high, high w: outside beyond low and high, inside in the core
    first_edge: Tensor  # [slabs + 1] int64
    edges: Tensor  # [E, 4] u, w of the start and u, w of the end, by slab
    outline: Tensor  # [O, 2, 2] every edge of all rings once, in x and y, by polygon
    first_outline: Tensor  # [N + 1] int64

    @classmethod
    def of(cls, polygons: Sequence[Tensor], further: Sequence[tuple[int, Tensor]] = ()) -> Polygons:
        """Collect first rings ``[n, V, 2]`` of any V, padded with the first corner; and further rings ``[v, 2]``.

        `further` has the polygon's row of each ring. A hole, like a further part, only adds edges: from a point in a
        hole a line crosses an even number of edges, from a point in a part an odd number.
        """
        # Each corner and the next are an edge; the padding's edges have no length.
        segments = [torch.stack([polygon, polygon.roll(-1, 1)], 2) for polygon in polygons]
        real = [(segment[:, :, 0] != segment[:, :, 1]).any(-1) for segment in segments]
        outline = torch.cat([segment[keep] for segment, keep in zip(segments, real, strict=True)])
        counts = torch.cat([keep.sum(1) for keep in real])
        of_edge = torch.repeat_interleave(counts)
        box = torch.cat([bounds(polygon) for polygon in polygons])
        if further:
            segments_of_all = [outline]
            owners = [of_edge]
            for row, ring in further:
                around = torch.stack([ring, ring.roll(-1, 0)], 1)
                around = around[(around[:, 0] != around[:, 1]).any(-1)]
                segments_of_all.append(around)
                owners.append(of_edge.new_full((len(around),), row))
                ring_bounds = bounds(ring)
                box[row, :2] = torch.minimum(box[row, :2], ring_bounds[:2])
                box[row, 2:] = torch.maximum(box[row, 2:], ring_bounds[2:])
            of_edge, order = torch.cat(owners).sort(stable=True)
            outline = torch.cat(segments_of_all)[order]
            counts = torch.bincount(of_edge, minlength=len(counts))

        # Slabs of equal width along the longer side.
        width, height = (box[:, 2:] - box[:, :2]).unbind(1)
        upright = height > width
        extent = torch.maximum(width, height)
        low = torch.where(upright, box[:, 1], box[:, 0])
        slabs = torch.maximum(counts // EDGES_PER_SLAB, (extent / SLAB_WIDTH).long()).clamp(1, MOST_SLABS)
        scale = slabs / extent.clamp(min=SLACK)
        first_slab = starts(slabs)

        # Edges in u and w, once for each slab that they meet, sorted by slab.
        edges = torch.where(upright[of_edge, None, None], outline.flip(-1), outline)
        slab = ((edges[..., 0] - low[of_edge, None]) * scale[of_edge, None]).long()
        slab = torch.minimum(slab, slabs[of_edge, None] - 1)
        edge, step = expand(slab.amax(1) - slab.amin(1) + 1, slab.amin(1))  # an edge may be in several slabs
        slab, order = (first_slab[of_edge[edge]] + step).sort(stable=True)
        edge = edge[order]
        step = step[order]
        edges = edges[edge].flatten(1)

        # For each slab: where along w a point is outside, and where inside.
        first_edge = starts(torch.bincount(slab, minlength=int(first_slab[-1])))
        begin = low[of_edge[edge]] + step / scale[of_edge[edge]]
        ranges = _slab_ranges(edges, first_edge, slab, begin, begin + 1 / scale[of_edge[edge]])
        return cls(
            bounds=box,
            upright=upright,
            low=low,
            scale=scale,
            first_slab=first_slab,
            ranges=ranges,
            first_edge=first_edge,
            edges=edges,
            outline=outline,
            first_outline=starts(counts),
        )

    def contain(self, points: Tensor, row: Tensor) -> Tensor:
        """Even-odd rule for points ``[M, K, 2]`` in polygons ``row [M]``; ``[M, K]`` bool.

        The boundary is outside, as in shapely's ``contains``.
        """
        # Points outside of the bounds are outside.
        x, y = points.unbind(-1)
        low_x, low_y, high_x, high_y = self.bounds[row][:, None].unbind(-1)
        inside = (x > low_x) & (x < high_x) & (y > low_y) & (y < high_y)
        pair, point = inside.nonzero().unbind(1)
        # The slab of each of the other points.
        upright = self.upright[row][pair]
        x = x[inside]
        y = y[inside]
        u = torch.where(upright, y, x)
        w = torch.where(upright, x, y)
        slab = ((u - self.low[row][pair]) * self.scale[row][pair]).long() + self.first_slab[row][pair]
        slab = torch.minimum(slab, (self.first_slab[row + 1] - 1)[pair])
        # The slab's ranges decide, or else its edges.
        low, core_low, core_high, high = self.ranges[slab].unbind(1)
        unclear = ((w > low) & (w < high) & ((w <= core_low) | (w >= core_high))).nonzero()[:, 0]
        odd = (w > core_low) & (w < core_high)
        odd[unclear] = _inside_by_edges(self.edges, self.first_edge, u[unclear], w[unclear], slab[unclear])
        inside[pair, point] = odd
        return inside

    def touch_boxes(self, boxes: Tensor, row: Tensor) -> Tensor:
        """Return ``[M]`` bool for rectangles ``[M, 4, 2]``, corners in order, and polygons ``row [M]``."""
        # A rectangle touches a polygon that has its first corner inside, or whose outline touches the rectangle.
        touching = self.contain(boxes[:, :1], row)[:, 0]
        begin = self.first_outline[row]
        box, edge = expand(self.first_outline[row + 1] - begin, begin)
        segments = self.outline[edge]
        near = bounds_touch(bounds(segments), bounds(boxes)[box]).nonzero()[:, 0]
        box = box[near]
        segments = segments[near]
        touching[box[segments_touch_boxes(segments[:, 0], segments[:, 1], boxes[box])]] = True
        return touching


def _inside_by_edges(edges: Tensor, first_edge: Tensor, u: Tensor, w: Tensor, slab: Tensor) -> Tensor:
    """True where a line from the point crosses an odd number of its slab's edges, and no edge meets the point."""
    begin = first_edge[slab]
    point, edge = expand(first_edge[slab + 1] - begin, begin)
    start_u, start_w, end_u, end_w = edges.index_select(0, edge).unbind(1)
    to_u = u[point]
    to_w = w[point]
    # Positive left of the edge, 0 on its line.
    side = (end_u - start_u) * (to_w - start_w) - (end_w - start_w) * (to_u - start_u)
    up = end_u > to_u
    crossed = ((start_u > to_u) != up) & (torch.where(up, side, -side) > 0)
    odd = torch.bincount(point[crossed], minlength=len(u)) % 2 == 1
    # Points on an edge are outside.
    between = ((start_u - to_u) * (end_u - to_u) <= 0) & ((start_w - to_w) * (end_w - to_w) <= 0)
    on_edge = ((side == 0) & between).nonzero()[:, 0]
    odd[point[on_edge]] = False
    return odd


def _slab_ranges(edges: Tensor, first_edge: Tensor, slab: Tensor, begin: Tensor, end: Tensor) -> Tensor:
    """`Polygons.ranges` from edges ``[E, 4]``, their slabs ``[E]``, and each slab's begin and end in u ``[E]``."""
    # The extent along w of each edge within its slab, sorted by slab and then by the lower end.
    start_u, start_w, end_u, end_w = edges.unbind(1)
    run = end_u - start_u
    share = (torch.stack([begin - SLACK, end + SLACK]) - start_u) / torch.where(run == 0, 1, run)
    share = torch.where(run == 0, share.new_tensor([[0.0], [1.0]]), share.clamp(0, 1))
    met = start_w + share * (end_w - start_w)
    order = met.amin(0).argsort(stable=True)
    order = order[slab[order].argsort(stable=True)]
    low = met.amin(0)[order] - SLACK
    high = met.amax(0)[order] + SLACK

    # The slab's widest gap without edges is entirely inside or entirely outside the polygon: inside, a core.
    covered = _running_max(high, slab)
    gap = torch.where(slab[1:] == slab[:-1], low[1:] - covered[:-1], 0)
    slabs = len(first_edge) - 1
    widest = gap.new_zeros(slabs).scatter_reduce_(0, slab[1:], gap, "amax")
    candidates = ((gap > 0) & (gap == widest[slab[1:]])).nonzero()[:, 0]
    chosen = candidates.new_full((slabs,), len(gap)).scatter_reduce_(0, slab[1:][candidates], candidates, "amin")
    chosen = chosen[chosen < len(gap)]
    core = torch.stack([covered[chosen], low[chosen + 1]], 1)
    of_slab = slab[chosen]
    filled = _inside_by_edges(edges, first_edge, (begin + end)[chosen] / 2, core.mean(1), of_slab)

    ranges = core.new_tensor([math.inf, math.inf, -math.inf, -math.inf]).repeat(slabs, 1)
    ranges[:, 0].scatter_reduce_(0, slab, low, "amin")
    ranges[:, 3].scatter_reduce_(0, slab, high, "amax")
    ranges[of_slab[filled], 1:3] = core[filled]
    return ranges


def _running_max(values: Tensor, group: Tensor) -> Tensor:
    """Largest value so far in the same group ``[E]``, of values in the order of ascending groups.

    Each value is replaced by its rank. Ranks of a later group are made larger than all before, so that one cumulative
    maximum begins anew in each group, exactly.
    """
    rank = torch.empty_like(group)
    rank[values.argsort()] = torch.arange(len(values), device=values.device)
    most = (group * len(values) + rank).cummax(0).values - group * len(values)
    return values[rank.argsort()][most]
