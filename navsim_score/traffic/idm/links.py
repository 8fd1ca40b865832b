"""Pairs of vehicles that may meet, found once per scene."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from navsim_score.geometry import rectangles
from navsim_score.geometry.boxes import bounds, bounds_touch, grown
from navsim_score.geometry.ranges import expand, starts
from navsim_score.simulation.timing import DURATION
from navsim_score.traffic.idm.model import ACCELERATION, HEADWAY
from navsim_score.traffic.idm.pieces import Pieces

MARGIN = 0.1  # meters by which distances are underestimated, so that no pair is missed


class Links(NamedTuple):
    """P pairs of a reader (a vehicle that keeps its distance) and a possible obstacle to it, at M places.

    A place is a piece of the reader's lane and a slot of the other vehicle.
    """

    reader: Tensor  # [P] int64 rails
    other: Tensor  # [P] int64 rails
    meeting: Tensor  # [M] int64, the pair of each place
    piece: Tensor  # [M] int64, the piece of the reader's lane
    slot: Tensor  # [M] int64, the slot of the other vehicle, see `Schedule`


class Reach(NamedTuple):
    """Lane parts, each ``[G]``, that vehicles may reach in 4 s."""

    begin: Tensor  # meters along the lane, where the lane ahead begins
    rear: Tensor  # meters along the lane, where the occupied part may begin
    front: Tensor  # meters along the lane, where the occupied part may end
    radius: Tensor  # meters between the lane and the vehicle's corners, at most
    first_piece: Tensor  # int64, first piece that the vehicle may occupy
    pieces: Tensor  # int64, number of pieces that the vehicle may occupy

    @classmethod
    def of(
        cls, lanes: list[Tensor], size: Tensor, progress: Tensor, speed: Tensor, pieces: Pieces, counts: Tensor
    ) -> Reach:
        """Reach of vehicles at ``progress``; ``lanes`` are distances of points, ``counts [G]`` pieces per lane."""
        last_two = [distances[-2:].tolist() for distances in lanes]
        before_last, ends = torch.tensor(last_two, dtype=torch.float64).view(-1, 2).T
        # At the end of a lane, the lane's last segment is both the lane ahead and the occupied part.
        begin = torch.minimum(progress, before_last)
        half = size[:, 0] / 2
        fastest = speed + DURATION * ACCELERATION
        rear = begin - half
        front = progress + half + DURATION * fastest + HEADWAY * fastest
        radius = size.norm(dim=1) / 2 + MARGIN + (progress - ends).clamp(min=0)
        # The pieces before the occupied part, and in it.
        rail, _ = expand(counts)
        passed = pieces.end <= rear[rail]
        within = ~passed & (pieces.begin < front[rail])
        passed_counts = torch.bincount(rail[passed], minlength=len(counts))
        reached_counts = torch.bincount(rail[within], minlength=len(counts))
        return cls(begin, rear, front, radius, starts(counts)[:-1] + passed_counts, reached_counts)


def neighbors(counts: Tensor, poses: list[Tensor], size: Tensor, tokens: list[str]) -> tuple[Tensor, Tensor]:
    """Pairs of reader and other rail of a scene whose lanes are near; ``counts [S]`` are rails per scene."""
    reader, other = expand(counts.repeat_interleave(counts), starts(counts)[:-1].repeat_interleave(counts))
    if not len(reader):
        return reader, other
    box = torch.stack([bounds(points[:, :2]) for points in poses])
    box = grown(box, size.norm(dim=1, keepdim=True) + MARGIN)
    near = (reader != other) & bounds_touch(box[reader], box[other])
    # Officially a vehicle overlooks vehicles whose token is part of its own token.
    sees = [tokens[b] not in tokens[a] for a, b in zip(reader.tolist(), other.tolist(), strict=True)]
    near &= torch.tensor(sees)
    return reader[near], other[near]


def find_links(pieces: Pieces, counts: Tensor, reach: Reach, reader: Tensor, other: Tensor) -> Links:
    """Keep the pairs that may meet, with their places; ``counts [G]`` are pieces per rail."""
    if not len(reader):
        return Links(reader, other, reader, reader, reader)
    # Every piece of the reader's lane, with every piece that the other vehicle may reach.
    pair, number = expand(counts[reader] * reach.pieces[other])
    follower = reader[pair]
    others = other[pair]
    mine = starts(counts)[follower] + number // reach.pieces[others]
    slot = number % reach.pieces[others]
    # How near the lane ahead of the reader comes to the other's lane, and so to its box.
    begin = reach.begin[follower]
    corridor, ahead = pieces.take(mine).between(begin, torch.full_like(begin, torch.inf))
    track, _ = pieces.take(reach.first_piece[others] + slot).between(reach.rear[others], reach.front[others])
    apart = torch.where(ahead, rectangles.distance(corridor, track), torch.inf)
    box = (apart <= reach.radius[others]).nonzero()[:, 0]
    lane = (apart <= MARGIN).nonzero()[:, 0]
    # The other's box has one slot, wherever it is, so that each of the reader's pieces meets the box at most once.
    on_lane = torch.stack([pair, mine, slot])[:, lane]
    at_box = torch.stack([pair, mine, reach.pieces[others]])[:, box]
    pair, mine, slot = torch.cat([on_lane, at_box], 1).unique(dim=1)  # pair by pair
    meeting, which = pair.unique(return_inverse=True)
    return Links(reader[meeting], other[meeting], which, mine, slot)


def levels(rails: int, readers: list[int], others: list[int]) -> Tensor:
    """Levels ``[G]`` of rails: a later rail is above earlier others that it reads, and not below earlier readers."""
    heights = [0] * rails
    steps = []
    for reader, other in zip(readers, others, strict=True):
        steps.append((min(reader, other), max(reader, other), int(other < reader)))
    # Sorted by the vehicle that decides earlier, so that its level is final.
    for first, second, step in sorted(steps):
        heights[second] = max(heights[second], heights[first] + step)
    return torch.tensor(heights, dtype=torch.int64)
