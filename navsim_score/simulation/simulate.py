"""Drive trajectories: a tracker steers a kinematic bicycle at 10 Hz.

docs/navsim_score.md §2 and §3; officially pdm_score.py and pdm_planner/simulation/.
"""

from __future__ import annotations

import torch
from torch import Tensor

from driving_scenes.vehicle import START
from navsim_score.simulation.interpolation import resample
from navsim_score.simulation.timing import DT
from navsim_score.simulation.tracker import BicycleState, Tracker, advance


def simulate(start: Tensor, poses: Tensor, interval: float = 0.5) -> Tensor:
    """Drive candidates, see `resample` and `track`.

    Returns:
        ``[..., 41, 11]`` states (`vehicle.State`) from 0 to 4 s, in the scene's frame; non-finite only for non-finite
        candidates.
    """
    return track(start, resample(start, poses, interval))


def track(start: Tensor, reference: Tensor) -> Tensor:
    """Drive references.

    Args:
        start: ``[..., 7]`` x, y, yaw, vx, vy, ax, ay at t = 0.
        reference: ``[..., T, 3]`` x, y, yaw every 0.1 s from t = 0, in the frame of ``start``; T is at least 4.

    Returns:
        ``[..., T, 11]`` states (`vehicle.State`), from ``start`` with zero steering and yaw rates.
    """
    shape = torch.broadcast_shapes(start.shape[:-1], reference.shape[:-2])
    steps = reference.shape[-2]
    first = start.expand(*shape, START).reshape(-1, START).T
    tracker = Tracker(reference.expand(*shape, steps, 3).reshape(-1, steps, 3))
    x, y, yaw, vx, vy, ax, ay = first.unbind()
    zero = torch.zeros_like(x)
    driven = [BicycleState(x, y, yaw, vx, ax, steer=zero, steer_rate=zero, yaw_rate=zero)]
    for step in range(steps - 1):
        acceleration, steer_rate = tracker.command(step, driven[-1])
        driven.append(advance(driven[-1], acceleration, steer_rate))
    x, y, yaw, vx, ax, steer, steer_rate, yaw_rate = (torch.stack(column, -1) for column in zip(*driven, strict=True))
    sideways = vy.new_zeros(2, len(vy), steps)  # a bicycle doesn't slip: only the start moves sideways
    sideways[:, :, 0] = torch.stack([vy, ay])
    yaw_acceleration = torch.cat([zero[:, None], yaw_rate.diff(dim=-1) / DT], -1)
    columns = [x, y, yaw, vx, sideways[0], ax, sideways[1], steer, steer_rate, yaw_rate, yaw_acceleration]
    return torch.stack(columns, -1).reshape(*shape, steps, len(columns))
