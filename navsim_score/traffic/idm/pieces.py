"""Lanes as straight pieces, as wide as the vehicle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from navsim_score.geometry.boxes import wrap_angle
from navsim_score.traffic.idm.rails import Rail

LARGEST_TURN = 1.0  # radians, up to which neighboring rectangles are prolonged to meet at the bend's outer side


class Pieces(NamedTuple):
    """N straight pieces of lanes."""

    start: Tensor  # [N, 2]
    step: Tensor  # [N, 2] meters per meter along the lane; slightly shorter than 1 where the lane bends
    half_step: Tensor  # [N] half the length of `step`
    direction: Tensor  # [N, 2] unit vectors
    begin: Tensor  # [N] meters along the lane
    end: Tensor  # [N] meters along the lane
    bend_before: Tensor  # [N] meters by which the bend at the begin prolongs the piece
    bend_after: Tensor  # [N] meters by which the bend at the end prolongs the piece
    half_width: Tensor  # [N] meters

    def take(self, rows: Tensor) -> Pieces:
        return Pieces(*(column[rows] for column in self))

    def between(self, begin: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
        """Cut out each piece's part between distances ``[N]`` along its lane.

        Returns:
            Rectangles ``[N, 6]``, and ``[N]`` bool, False for empty parts.
        """
        low = torch.where(begin < self.begin, self.begin - self.bend_before, begin)
        high = torch.where(end > self.end, self.end + self.bend_after, end)
        center = torch.addcmul(self.start, self.step, ((low + high) / 2 - self.begin)[:, None])
        half = (high - low) * self.half_step
        rectangle = torch.cat([center, self.direction, half[:, None], self.half_width[:, None]], 1)
        return rectangle, (begin < self.end) & (end > self.begin)


def cut(rails: Sequence[Rail], width: Tensor) -> tuple[Pieces, Tensor]:
    """Cut lanes into pieces of widths ``[G]`` in meters.

    Returns:
        Pieces, rail by rail, and the number of each rail's pieces ``[G]`` int64.
    """
    rows = []
    for row, rail in enumerate(rails):
        points = torch.from_numpy(rail.points[rail.corners])
        at = torch.from_numpy(rail.distances[rail.corners])
        along = points.diff(dim=0)
        length = along.norm(dim=1)
        yaw = torch.atan2(along[:, 1], along[:, 0])
        turn = wrap_angle(yaw.diff()).abs().clamp(max=LARGEST_TURN)
        bend = torch.cat([turn.new_zeros(1), width[row] / 2 * (turn / 2).tan(), turn.new_zeros(1)])
        step = along / at.diff()[:, None]
        # A table, so that the pieces of all rails are concatenated at once; columns in the order of `Pieces`.
        columns = [points[:-1], step, step.norm(dim=1, keepdim=True) / 2, along / length[:, None]]
        columns += [value[:, None] for value in (at[:-1], at[1:], bend[:-1], bend[1:])]
        rows.append(torch.cat([*columns, (width[row] / 2).expand(len(along), 1)], 1))
    table = torch.cat([torch.zeros(0, 12, dtype=torch.float64), *rows])
    counts = torch.tensor([len(row) for row in rows], dtype=torch.int64)
    pieces = Pieces(table[:, :2], table[:, 2:4], table[:, 4], table[:, 5:7], *table[:, 7:].unbind(1))
    return pieces, counts
