"""The rails of a batch of scenes as tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from navsim_score.batch.scene_batch import SceneBatch
from navsim_score.geometry.boxes import wrap_angle
from navsim_score.geometry.ranges import starts
from navsim_score.traffic.idm.links import Links, Reach, find_links, levels, neighbors
from navsim_score.traffic.idm.pieces import Pieces, cut
from navsim_score.traffic.idm.rails import Rail


@dataclass(frozen=True, eq=False)
class RailNetwork:
    """G rails, scene by scene, in the order of decisions."""

    scene: Tensor  # [G] int64
    agent: Tensor  # [G] int64, row among the scene's agents
    counts: Tensor  # [S] int64 rails of each scene
    distances: Tensor  # [G, V] distances of points along the lanes, padded with infinity
    poses: Tensor  # [G, V, 3] x, y, yaw of the points, yaw unwrapped
    last: Tensor  # [G] int64, the last point
    size: Tensor  # [G, 2] length, width
    progress: Tensor  # [G] meters along the lane at the start
    snapped: Tensor  # [G, 3] pose on the lane at the start
    speed: Tensor  # [G] m/s at the start
    target: Tensor  # [G] m/s on a free road
    sees_ego: Tensor  # [G] bool
    pieces: Pieces  # pieces of the lanes, rail by rail
    first_piece: Tensor  # [G + 1] int64 first piece of each rail, and the number of pieces
    first_reached: Tensor  # [G] int64, the first piece that the vehicle may occupy in 4 s
    reached: Tensor  # [G] int64, the number of pieces that the vehicle may occupy in 4 s
    links: Links  # pairs of rails that may meet
    level: Tensor  # [G] int64; independent rails of a level decide at the same time, lower levels first

    @classmethod
    def of(cls, batch: SceneBatch, rails: Sequence[Sequence[Rail]]) -> RailNetwork:
        """The network of each scene's rails."""
        flat: list[Rail] = []
        sizes = []
        tokens = []
        for scene, of_scene in zip(batch.scenes, rails, strict=True):
            for rail in of_scene:
                flat.append(rail)
                sizes.append(scene.agents.sizes[rail.agent, :2])
                tokens.append(scene.agents.tokens[rail.agent])
        counts = torch.tensor([len(of_scene) for of_scene in rails], dtype=torch.int64)
        size = _stacked_rows(sizes, 2)
        progress = torch.tensor([rail.progress for rail in flat], dtype=torch.float64)
        speed = torch.tensor([rail.speed for rail in flat], dtype=torch.float64)
        poses = [torch.from_numpy(np.column_stack([rail.points, rail.yaws])) for rail in flat]
        distances = [torch.from_numpy(rail.distances) for rail in flat]

        # Which vehicles may meet, and who decides first.
        pieces, piece_counts = cut(flat, size[:, 1])
        reach = Reach.of(distances, size, progress, speed, pieces, piece_counts)
        reader, other = neighbors(counts, poses, size, tokens)
        links = find_links(pieces, piece_counts, reach, reader, other)
        level = levels(len(flat), links.reader.tolist(), links.other.tolist())

        like = batch.start
        device = like.device
        return cls(
            scene=torch.repeat_interleave(counts).to(device),
            agent=torch.tensor([rail.agent for rail in flat], dtype=torch.int64, device=device),
            counts=counts.to(device),
            distances=_padded_rows(distances, (2,), torch.inf).to(like),
            poses=_padded_rows(poses, (2, 3), 0.0).to(like),
            last=torch.tensor([len(rail.distances) - 1 for rail in flat], dtype=torch.int64, device=device),
            size=size.to(like),
            progress=progress.to(like),
            snapped=_stacked_rows([torch.from_numpy(rail.pose) for rail in flat], 3).to(like),
            speed=speed.to(like),
            target=torch.tensor([rail.target_speed for rail in flat], dtype=torch.float64).to(like),
            sees_ego=torch.tensor(["ego" not in token for token in tokens], dtype=torch.bool, device=device),
            pieces=Pieces(*(column.to(like) for column in pieces)),
            first_piece=starts(piece_counts).to(device),
            first_reached=reach.first_piece.to(device),
            reached=reach.pieces.to(device),
            links=Links(*(column.to(device) for column in links)),
            level=level.to(device),
        )

    def pose_at(self, rail: Tensor, progress: Tensor) -> Tensor:
        """Poses ``[n, 3]`` on rails ``[n]`` at distances ``[n]``, clipped to the lanes."""
        distances = self.distances[rail]
        last = self.last[rail]
        kept = torch.maximum(torch.minimum(progress, _at_column(distances, last)), distances[:, 0])
        high = torch.minimum(torch.searchsorted(distances, kept[:, None])[:, 0].clamp(min=1), last)
        low = high - 1
        begin = _at_column(distances, low)
        share = (kept - begin) / (_at_column(distances, high) - begin)
        start = self.poses[rail, low]
        pose = start + share[:, None] * (self.poses[rail, high] - start)
        return torch.cat([pose[:, :2], wrap_angle(pose[:, 2:])], 1)

    def end(self, rail: Tensor) -> Tensor:
        """Distances ``[n]`` of the last points of rails ``[n]``."""
        return _at_column(self.distances[rail], self.last[rail])

    def last_begin(self, rail: Tensor) -> Tensor:
        """Distances ``[n]`` of the next-to-last points of rails ``[n]``."""
        return _at_column(self.distances[rail], self.last[rail] - 1)


def _at_column(rows: Tensor, column: Tensor) -> Tensor:
    return rows.gather(1, column[:, None])[:, 0]


def _padded_rows(rows: list[Tensor], empty: tuple[int, ...], filler: float) -> Tensor:
    """Rows of different lengths in one tensor; without any, no rows of shape `empty`."""
    if not rows:
        return torch.zeros(0, *empty, dtype=torch.float64)
    return pad_sequence(rows, batch_first=True, padding_value=filler)


def _stacked_rows(rows: list[Tensor], width: int) -> Tensor:
    if not rows:
        return torch.zeros(0, width, dtype=torch.float64)
    return torch.stack(rows)
