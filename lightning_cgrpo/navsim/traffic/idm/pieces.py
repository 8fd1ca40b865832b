"""Lanes as straight pieces, each as wide as the vehicle that drives along."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_cgrpo.navsim.geometry.boxes import wrap_angle
from lightning_cgrpo.navsim.traffic.idm.rails import Rail

LARGEST_TURN = 1.0
"""Radians up to which neighboring rectangles of an outline are made to meet at its outer side."""


@dataclass(frozen=True, eq=False)
class Pieces:
    """The lanes of rails as N straight pieces, with the width of the vehicle.

    Args:
        start: ``[N, 2]``.
        step: ``[N, 2]`` meters per meter along the lane; a bit shorter than 1 where the lane bends.
        half_step: ``[N]`` half the length of that.
        direction: ``[N, 2]`` unit vectors.
        begin: ``[N]`` meters along the lane.
        end: ``[N]``.
        before: ``[N]`` meters by which a piece is longer at its begin where another comes before it, for the bend.
        after: ``[N]``, alike at its end.
        half_width: ``[N]``.
    """

    start: Tensor
    step: Tensor
    half_step: Tensor
    direction: Tensor
    begin: Tensor
    end: Tensor
    before: Tensor
    after: Tensor
    half_width: Tensor

    def take(self, rows: Tensor) -> Pieces:
        """Pieces ``[n]``."""
        return Pieces(*(getattr(self, name)[rows] for name in Pieces.__dataclass_fields__))

    def between(self, begin: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
        """The part of each piece between distances ``[N]`` along its lane.

        Returns:
            Rectangles ``[N, 6]``, and ``[N]`` bool whether there is such a part.
        """
        low = torch.where(begin < self.begin, self.begin - self.before, begin)
        high = torch.where(end > self.end, self.end + self.after, end)
        center = torch.addcmul(self.start, self.step, ((low + high) / 2 - self.begin)[:, None])
        half = (high - low) * self.half_step
        made = torch.cat([center, self.direction, half[:, None], self.half_width[:, None]], 1)
        return made, (begin < self.end) & (end > self.begin)


def cut(rails: Sequence[Rail], width: Tensor, shift: Tensor) -> tuple[Pieces, Tensor]:
    """Lanes as pieces, rail by rail.

    Args:
        rails: G.
        width: ``[G]`` of the vehicles.
        shift: ``[G, 3]``, the first two columns are subtracted from positions.

    Returns:
        Pieces, and ``[G]`` int64 how many each rail has.
    """
    rows = []
    for row, rail in enumerate(rails):
        points = torch.from_numpy(rail.points[rail.corners]) - shift[row, :2]
        at = torch.from_numpy(rail.distances[rail.corners])
        along = points.diff(dim=0)
        length = along.norm(dim=1)
        yaw = torch.atan2(along[:, 1], along[:, 0])
        turn = wrap_angle(yaw.diff()).abs().clamp(max=LARGEST_TURN)
        bend = torch.cat([turn.new_zeros(1), width[row] / 2 * (turn / 2).tan(), turn.new_zeros(1)])
        step = along / at.diff()[:, None]
        columns = [points[:-1], step, step.norm(dim=1, keepdim=True) / 2, along / length[:, None]]
        columns += [value[:, None] for value in (at[:-1], at[1:], bend[:-1], bend[1:])]
        rows.append(torch.cat([*columns, (width[row] / 2).expand(len(along), 1)], 1))
    table = torch.cat([torch.zeros(0, 12, dtype=torch.float64), *rows])
    counts = torch.tensor([len(row) for row in rows], dtype=torch.int64)
    return Pieces(table[:, :2], table[:, 2:4], table[:, 4], table[:, 5:7], *table[:, 7:].unbind(1)), counts
