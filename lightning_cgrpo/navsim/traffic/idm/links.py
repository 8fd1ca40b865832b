"""Which vehicles may ever come into each other's way, found out once per scene."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_cgrpo.navsim.geometry import rectangles
from lightning_cgrpo.navsim.geometry.boxes import bounds, bounds_touch, expand
from lightning_cgrpo.navsim.traffic.idm.model import ACCELERATION, HEADWAY
from lightning_cgrpo.navsim.traffic.idm.pieces import Pieces

HORIZON = 4.0
SLACK = 0.1
"""Meters by which vehicles are taken for nearer than they are."""


@dataclass(frozen=True, eq=False)
class Links:
    """P pairs of rails, a reader that has to mind another one, and where that may come into its way.

    Args:
        reader: ``[P]`` int64 rails.
        other: ``[P]`` int64 rails.
        meeting: ``[M]`` int64, the pair of each of M places.
        piece: ``[M]`` int64, the piece of the reader's lane.
        slot: ``[M]`` int64, which of what the other one may occupy.
    """

    reader: Tensor
    other: Tensor
    meeting: Tensor
    piece: Tensor
    slot: Tensor


@dataclass(frozen=True, eq=False)
class Window:
    """Where on their lanes G vehicles may be in 4 s.

    Args:
        begin: ``[G]`` meters, from where what is ahead matters.
        rear: ``[G]`` meters, from where a vehicle may occupy its lane.
        front: ``[G]`` meters, up to where it may.
        radius: ``[G]`` meters from its lane up to which it may be.
    """

    begin: Tensor
    rear: Tensor
    front: Tensor
    radius: Tensor

    @classmethod
    def of(cls, distances: list[Tensor], size: Tensor, progress: Tensor, speed: Tensor) -> Window:
        ends = torch.tensor([float(at[-1]) for at in distances], dtype=torch.float64)
        # At the end of a lane, its last segment stands for what is ahead and for what is occupied.
        begin = torch.minimum(progress, torch.tensor([float(at[-2]) for at in distances], dtype=torch.float64))
        half = size[:, 0] / 2
        fastest = speed + HORIZON * ACCELERATION
        front = progress + half + HORIZON * fastest + HEADWAY * fastest
        return cls(begin, begin - half, front, size.norm(dim=1) / 2 + SLACK + (progress - ends).clamp(min=0))

    def pieces(self, pieces: Pieces, counts: Tensor) -> tuple[Tensor, Tensor]:
        """The first piece that each vehicle may occupy, and how many."""
        rail, _ = expand(counts)
        reached = (pieces.end > self.rear[rail]) & (pieces.begin < self.front[rail])
        before = torch.bincount(rail[pieces.end <= self.rear[rail]], minlength=len(counts))
        return counts.cumsum(0) - counts + before, torch.bincount(rail[reached], minlength=len(counts))


def neighbors(counts: Tensor, poses: list[Tensor], size: Tensor, tokens: list[str]) -> tuple[Tensor, Tensor]:
    """Pairs of different rails of a scene, a reader and another one, whose lanes are near each other."""
    reader, number = expand(counts.repeat_interleave(counts))
    other = (counts.cumsum(0) - counts).repeat_interleave(counts)[reader] + number
    if not len(reader):
        return reader, other
    reach = size.norm(dim=1, keepdim=True) + SLACK
    box = torch.stack([bounds(points[:, :2]) for points in poses]) + reach * reach.new_tensor([-1.0, -1.0, 1.0, 1.0])
    near = (reader != other) & bounds_touch(box[reader], box[other])
    # Officially a vehicle overlooks those whose token is part of its own.
    near &= torch.tensor([tokens[b] not in tokens[a] for a, b in zip(reader.tolist(), other.tolist(), strict=True)])
    return reader[near], other[near]


def find_links(
    pieces: Pieces,
    piece_counts: Tensor,
    first_reached: Tensor,
    reached: Tensor,
    window: Window,
    reader: Tensor,
    other: Tensor,
) -> Links:
    """Of pairs of rails those that may meet."""
    if not len(reader):
        return Links(reader, other, reader, reader, reader)
    pair, number = expand(piece_counts[reader] * reached[other])
    own, others = reader[pair], other[pair]
    mine = (piece_counts.cumsum(0) - piece_counts)[own] + number // reached[others]
    slot = number % reached[others]
    far = torch.full_like(window.begin, torch.inf)
    corridor, ahead = pieces.take(mine).between(window.begin[own], far[own])
    track, _ = pieces.take(first_reached[others] + slot).between(window.rear[others], window.front[others])
    apart = torch.where(ahead, rectangles.distance(corridor, track), torch.inf)
    box = (apart <= window.radius[others]).nonzero()[:, 0]
    lane = (apart <= SLACK).nonzero()[:, 0]
    # The box may be at any of the other's pieces: each of the reader's needs to be compared with it only once.
    places = torch.stack([pair, mine, slot])[:, lane], torch.stack([pair, mine, reached[others]])[:, box]
    pair, mine, slot = torch.cat(places, 1).unique(dim=1)  # pair by pair
    meeting, which = pair.unique(return_inverse=True)
    return Links(reader[meeting], other[meeting], which, mine, slot)


def levels(rails: int, readers: list[int], others: list[int]) -> Tensor:
    """``[G]``: a reader is above others that decide before it, and not above others that decide after it."""
    heights = [0] * rails
    for first, second, step in sorted(
        # By the one that decides earlier, so that its level is known.
        (min(reader, other), max(reader, other), int(other < reader))
        for reader, other in zip(readers, others, strict=True)
    ):
        heights[second] = max(heights[second], heights[first] + step)
    return torch.tensor(heights, dtype=torch.int64)
