"""Drives as accelerations and curvatures: few numbers, whose noise leaves a drive smooth."""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_cgrpo.tasks.driving.answers import POSE_INTERVAL
from navsim_score.simulation.interpolation import unwrapped

SECONDS = 4
"""Seconds of a drive; each has an acceleration and a curvature."""
ACCELERATION, CURVATURE = 2.0, 0.02
"""m/s² and 1/m of a number of 1."""
TOP_SPEED = 30.0


def drive(numbers: Tensor, speed: Tensor) -> Tensor:
    """Poses ``[..., 16, 3]`` every 0.25 s, float64, of drives from a speed ``[...]``, in the ego's frame at t = 0.

    Args:
        numbers: ``[..., 2 * SECONDS]``: accelerations, then curvatures, one for each second, in their units.
    """
    each = round(1 / POSE_INTERVAL)  # steps of a second
    # 1. An acceleration and a curvature of each step, [..., 16].
    accelerations, curvatures = numbers.double().chunk(2, -1)
    accelerations = (accelerations * ACCELERATION).repeat_interleave(each, -1)
    curvatures = (curvatures * CURVATURE).repeat_interleave(each, -1)
    # 2. Step by step: the speed changes evenly, and the step leads along the heading in its middle.
    speed = speed.double().expand(numbers.shape[:-1])
    x = y = yaw = torch.zeros_like(speed)
    poses = []
    for step in range(SECONDS * each):
        reached = (speed + accelerations[..., step] * POSE_INTERVAL).clamp(0, TOP_SPEED)
        moved = (speed + reached) / 2 * POSE_INTERVAL
        middle = yaw + curvatures[..., step] * moved / 2
        x = x + moved * middle.cos()
        y = y + moved * middle.sin()
        yaw = yaw + curvatures[..., step] * moved
        speed = reached
        poses.append(torch.stack([x, y, yaw], -1))
    return torch.stack(poses, -2)


def numbers_of(poses: Tensor, speed: float) -> Tensor:
    """``[2 * SECONDS]`` numbers whose `drive` is near to poses ``[8, 3]`` every 0.5 s: an expert's, to imitate."""
    path = torch.cat([poses.new_zeros(1, 3), poses])  # [9, 3]
    # 1. Speeds at full seconds, whose differences are the accelerations.
    lengths = path[:, :2].diff(dim=0).norm(dim=1)  # [8] meters of half seconds
    halves = lengths.view(SECONDS, 2)
    # Displacements around a full second give its speed; the last is extrapolated.
    inner = (halves[:-1, 1] + halves[1:, 0]).tolist()
    last = float(3 * halves[-1, 1] - halves[-1, 0])
    speeds = torch.tensor([speed, *inner, max(0.0, last)], dtype=torch.float64)
    # 2. Curvatures of seconds: turns by meters, 0 for a car that hardly moves.
    turns = unwrapped(path[:, 2])[::2].diff()
    meters = halves.sum(1)
    curvatures = torch.where(meters > 0.5, turns / meters.clamp(min=0.5), 0.0)
    return torch.cat([speeds.diff() / ACCELERATION, curvatures / CURVATURE])
