"""Polylines compared with many points at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from navsim_score.geometry.boxes import SLACK, bounds, bounds_touch, dot, grown

CHUNK = 8  # segments of a polyline that share bounds


@dataclass(frozen=True, eq=False)
class Polylines:
    """N polylines of C points."""

    points: Tensor  # [N, C, 2], padded with the last point
    bounds: Tensor  # [N, chunks, 4] of runs of `CHUNK` segments

    @classmethod
    def of(cls, points: Tensor) -> Polylines:
        """Collect ``[N, C, 2]``, padded with the last point; C is at least 2."""
        missing = -(points.shape[1] - 1) % CHUNK
        points = torch.cat([points, points[:, -1:].expand(-1, missing, -1)], 1)
        return cls(points, bounds(points.unfold(1, CHUNK + 1, CHUNK).transpose(-1, -2)))

    def project(self, points: Tensor, row: Tensor) -> Tensor:
        """Distances ``[M]`` along polylines ``row [M]`` of the (first) nearest places to points ``[M, 2]``."""
        start = self.points[:, :-1]
        along = self.points.diff(dim=1)
        lengths = along.norm(dim=-1)
        passed = lengths.cumsum(1) - lengths  # meters before each segment
        square, share = _to_segments(points[:, None], start[row], along[row])
        nearest = square.argmin(1, keepdim=True)
        within_segment = lengths[row].gather(1, nearest) * share.gather(1, nearest)
        distances: Tensor = passed[row].gather(1, nearest) + within_segment
        return distances[:, 0]

    def within(self, points: Tensor, row: Tensor, distance: float) -> Tensor:
        """``[M, T]`` bool: points ``[M, T, 2]`` at most ``distance`` meters from polylines ``row [M]``."""
        # Pairs of a row and a run of segments whose bounds touch.
        box = grown(self.bounds, distance + SLACK)
        of_row, chunk = bounds_touch(bounds(points)[:, None], box[row]).nonzero().unbind(1)
        # Of these, the points inside of the run's bounds.
        x, y = points[of_row].unbind(-1)
        low_x, low_y, high_x, high_y = box[row[of_row], chunk][:, None].unbind(-1)
        pair, step = ((x >= low_x) & (x <= high_x) & (y >= low_y) & (y <= high_y)).nonzero().unbind(1)
        # The exact distance of these points to the run's segments.
        segment = chunk[pair, None] * CHUNK + torch.arange(CHUNK, device=points.device)
        of_row = of_row[pair]
        line = row[of_row, None]
        start = self.points[line, segment]
        square, _ = _to_segments(points[of_row, step, None], start, self.points[line, segment + 1] - start)
        near = (square <= distance**2).any(1).nonzero()[:, 0]
        near_line = torch.zeros(points.shape[:2], dtype=torch.bool, device=points.device)
        near_line[of_row[near], step[near]] = True
        return near_line


def _to_segments(points: Tensor, start: Tensor, along: Tensor) -> tuple[Tensor, Tensor]:
    """Squared distance from points to segments, and the nearest place's share of the segment (0 at ``start``)."""
    away = points - start
    square = dot(along, along)
    share = (dot(along, away) / torch.where(square > 0, square, 1)).clamp(0, 1)
    rest = away - share[..., None] * along
    return dot(rest, rest), share
