"""Rows and agents that come near each other, which collisions and time to collision look at. See NAVSIM.md 1.6, 1.7."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_cgrpo.navsim.geometry.boxes import SLACK, bounds_touch, box_corners, boxes_touch, dot
from lightning_cgrpo.navsim.scoring.motion import Motion, Outcome
from lightning_cgrpo.navsim.traffic.traffic import TrafficRollouts
from lightning_cgrpo.scenes.vehicle import LENGTH, WIDTH

EGO_RADIUS = math.hypot(LENGTH, WIDTH) / 2 + SLACK
AHEAD, BEHIND = math.radians(30), math.radians(150)
"""Angles, at the rear axle, between the ego's heading and an agent that is less ahead, and more behind."""


@dataclass(frozen=True, eq=False)
class Encounters:
    """M pairs of a row and an agent that may come near each other.

    Args:
        row: ``[M]`` int64.
        agent: ``[M]`` int64.
        poses: ``[M, 41, 3]`` of the agent.
        present: ``[M, 41]`` bool.
        sizes: ``[M, 2]``.
        types: ``[M]``.
        speeds: ``[M, 41]`` by which an agent counts as stopped.
        radius: ``[M]`` of a circle around both boxes when their centers are that far apart.
    """

    row: Tensor
    agent: Tensor
    poses: Tensor
    present: Tensor
    sizes: Tensor
    types: Tensor
    speeds: Tensor
    radius: Tensor

    @classmethod
    def of(cls, motion: Motion, traffic: TrafficRollouts, *, current_speed: bool = False) -> Encounters:
        """All pairs whose bounding boxes over time touch, the ego's grown by what it drives in a second.

        Args:
            motion: of the rows.
            traffic: in which they drive.
            current_speed: see `Fixes`.
        """
        reach = motion.speeds.amax(1, keepdim=True) + SLACK  # time to collision looks 0.9 s ahead
        swept = motion.bounds + reach * motion.bounds.new_tensor([-1.0, -1.0, 1.0, 1.0])
        half = traffic.sizes.norm(dim=-1) / 2
        positions, absent = traffic.poses[..., :2], ~traffic.present[..., None]
        low = positions.masked_fill(absent, math.inf).amin(2) - half[..., None]
        high = positions.masked_fill(absent, -math.inf).amax(2) + half[..., None]
        near = bounds_touch(swept[:, None], torch.cat([low, high], -1)[traffic.of_row])
        row, agent = near.nonzero().unbind(1)
        at = (traffic.of_row[row], agent)
        if current_speed and traffic.speeds is not None:
            speeds = traffic.speeds[at]
        else:
            speeds = traffic.first_speed[at][:, None].expand(-1, traffic.poses.shape[2])
        return cls(
            row,
            agent,
            traffic.poses[at],
            traffic.present[at],
            traffic.sizes[at],
            traffic.types[at],
            speeds,
            half[at] + EGO_RADIUS,
        )

    def touching(self, pair: Tensor, step: Tensor, ego: Tensor) -> Tensor:
        """Which of n boxes of the ego ``[n, 4, 2]`` touch an agent at a step, ``[n]`` bool."""
        return boxes_touch(ego, self.boxes(pair, step))

    def boxes(self, pair: Tensor, step: Tensor) -> Tensor:
        """Corners ``[n, 4, 2]`` of agents at steps."""
        return box_corners(self.poses[pair, step], self.sizes[pair])

    def angles(self, pair: Tensor, step: Tensor, pose: Tensor, direction: Tensor) -> Tensor:
        """``[n]`` in [0, pi] between where the ego looks to and where an agent's center is at a step.

        Args:
            pair: ``[n]``.
            step: ``[n]`` of the agent.
            pose: ``[n, 2 or more]`` of the ego's rear axle.
            direction: ``[n, 2]`` of the ego.
        """
        away = self.poses[pair, step, :2] - pose[:, :2]
        # Rounding must not lead out of the range, although officially it does and gives NaN for a few straight ahead.
        cosine: Tensor = dot(direction, away) / away.norm(dim=1)
        return cosine.clamp(-1, 1).acos()

    def not_excused(self, pair: Tensor, order: Tensor, violating: Tensor) -> Tensor:
        """Which contacts violate: an agent is ignored after the first contact with it that doesn't.

        Args:
            pair: ``[n]``.
            order: ``[n]`` int64, of the contacts of a pair.
            violating: ``[n]`` bool, taken by itself.
        """
        excused = torch.full((len(self.row),), torch.iinfo(order.dtype).max, device=order.device)
        excused.scatter_reduce_(0, pair[~violating], order[~violating], "amin")
        return violating & (order < excused[pair])

    def outcome(self, pair: Tensor, step: Tensor, value: Tensor, rows: int) -> Outcome:
        """Of contacts that violate: each row's least value, 1 where there are none, and its first step.

        Args:
            pair: ``[n]``.
            step: ``[n]`` int64.
            value: ``[n]``.
            rows: R.
        """
        row, never = self.row[pair], torch.iinfo(step.dtype).max
        values = value.new_ones(rows).scatter_reduce_(0, row, value, "amin")
        steps = step.new_full((rows,), never).scatter_reduce_(0, row, step, "amin")
        return Outcome(values, torch.where(steps == never, -1, steps))
