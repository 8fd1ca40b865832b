"""Row-agent pairs near each other, for NC and TTC (docs/navsim_score.md §6, §7)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_cgrpo.navsim.geometry.boxes import SLACK, bounds_touch, box_corners, dot
from lightning_cgrpo.navsim.scoring.motion import Motion, Outcome
from lightning_cgrpo.navsim.traffic.traffic import TrafficRollouts
from lightning_cgrpo.scenes.vehicle import LENGTH, WIDTH

EGO_RADIUS = math.hypot(LENGTH, WIDTH) / 2 + SLACK


@dataclass(frozen=True, eq=False)
class Encounters:
    """M pairs of row and agent that may touch."""

    row: Tensor  # [M] int64
    poses: Tensor  # [M, T, 3] of the agent
    present: Tensor  # [M, T] bool
    sizes: Tensor  # [M, 2]
    types: Tensor  # [M]
    speeds: Tensor  # [M, T] by which an agent counts as stopped
    radius: Tensor  # [M] distance of centers beyond which boxes cannot touch

    @classmethod
    def of(cls, motion: Motion, traffic: TrafficRollouts, *, current_speed: bool = False) -> Encounters:
        """Pairs whose bounds over time touch, the ego's grown by a second at its highest speed.

        `current_speed`: see `Fixes`.
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
            traffic.poses[at],
            traffic.present[at],
            traffic.sizes[at],
            traffic.types[at],
            speeds,
            half[at] + EGO_RADIUS,
        )

    def boxes(self, pair: Tensor, step: Tensor) -> Tensor:
        """Corners ``[n, 4, 2]`` of n pairs' agents."""
        return box_corners(self.poses[pair, step], self.sizes[pair])

    def angles(self, pair: Tensor, step: Tensor, pose: Tensor, direction: Tensor) -> Tensor:
        """``[n]`` in [0, pi] between the ego's direction and the agent's center, from the rear axle."""
        away = self.poses[pair, step, :2] - pose[:, :2]
        # Clamped, because officially rounding gives NaN for some agents straight ahead.
        cosine: Tensor = dot(direction, away) / away.norm(dim=1)
        return cosine.clamp(-1, 1).acos()

    def not_excused(self, pair: Tensor, order: Tensor, violating: Tensor) -> Tensor:
        """``[n]`` bool: contacts that violate before their pair's first non-violating contact; later ones are ignored.

        ``order [n]`` int64 sorts a pair's contacts in time.
        """
        excused = torch.full((len(self.row),), torch.iinfo(order.dtype).max, device=order.device)
        excused.scatter_reduce_(0, pair[~violating], order[~violating], "amin")
        return violating & (order < excused[pair])

    def outcome(self, pair: Tensor, step: Tensor, value: Tensor, rows: int) -> Outcome:
        """Each row's least value among its violating contacts, 1 without any, and the step of its first contact."""
        row, never = self.row[pair], torch.iinfo(step.dtype).max
        values = value.new_ones(rows).scatter_reduce_(0, row, value, "amin")
        steps = step.new_full((rows,), never).scatter_reduce_(0, row, step, "amin")
        return Outcome(values, torch.where(steps == never, -1, steps))
