"""Candidates in the scene's frame, interpolated linearly at 10 Hz.

docs/navsim_score.md §2; officially navsim/evaluate/pdm_score.py and nuPlan's InterpolatedTrajectory. The official order
of operations stays, because a standing candidate's displacement must be exactly 0.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from navsim_score.simulation.timing import DT, STEPS

MICROSECONDS = 1e6  # the official code truncates times to whole microseconds


def resample(start: Tensor, poses: Tensor, interval: float = 0.5) -> Tensor:
    """Resample candidates at 10 Hz.

    Args:
        start: ``[..., 3 or more]`` x, y, yaw of the ego at t = 0, in the scene's frame.
        poses: ``[..., P, 3]`` x, y, yaw in the ego's frame, at ``interval``, 2 ``interval``, … seconds.

    Returns:
        ``[..., 41, 3]`` x, y, yaw in [-pi, pi) in the scene's frame, 0 to 4 s, standing after the last pose.

    Raises:
        ValueError: an interval below 1 microsecond.
    """
    if not (math.isfinite(interval) and interval * MICROSECONDS >= 1):
        raise ValueError(f"Expected an interval in seconds, at least 1e-6, but got {interval}.")
    later = in_scene(start[..., None, :3], poses)
    first = start[..., None, :3].expand(*later.shape[:-2], 1, 3)
    knots = torch.cat([first, later], -2)
    knots = torch.cat([knots[..., :2], unwrapped(knots[..., 2])[..., None]], -1)
    times = [0]
    times += [int((step * interval + interval) * MICROSECONDS) for step in range(poses.shape[-2])]
    at = [min(int(step * DT * MICROSECONDS), times[-1]) for step in range(STEPS)]
    return interpolated(times, knots, at)


def interpolated(times: list[int], knots: Tensor, at: list[int]) -> Tensor:
    """Interpolate poses ``[..., K, 3 or more]`` with unwrapped yaw, given at K ascending times, at N times (in µs).

    Returns:
        ``[..., N, 3 or more]``, yaw in [-pi, pi).
    """
    known_times = torch.tensor(times, device=knots.device)
    wanted_times = torch.tensor(at, device=knots.device)
    after = torch.searchsorted(known_times, wanted_times).clamp(min=1)
    before = after - 1
    base = knots[..., before, :]
    slope = (knots[..., after, :] - base) / (known_times[after] - known_times[before])[:, None]
    poses = slope * (wanted_times - known_times[before])[:, None] + base
    return torch.cat([poses[..., :2], principal(poses[..., 2:3]), poses[..., 3:]], -1)


def in_scene(origin: Tensor, poses: Tensor) -> Tensor:
    """Transform poses ``[..., 3]`` from the frames of egos at ``origin [..., 3]`` to the scene's frame."""
    x, y, yaw = poses.unbind(-1)
    cos = origin[..., 2].cos()
    sin = origin[..., 2].sin()
    turned = torch.atan2(sin * yaw.cos() + cos * yaw.sin(), cos * yaw.cos() - sin * yaw.sin())
    return torch.stack([cos * x - sin * y + origin[..., 0], sin * x + cos * y + origin[..., 1], turned], -1)


def in_ego(origin: Tensor, poses: Tensor) -> Tensor:
    """Invert `in_scene`: from the scene's frame to the egos' frames."""
    x, y, yaw = (poses - origin).unbind(-1)
    cos = origin[..., 2].cos()
    sin = origin[..., 2].sin()
    return torch.stack([cos * x + sin * y, cos * y - sin * x, torch.atan2(yaw.sin(), yaw.cos())], -1)


def principal(angle: Tensor) -> Tensor:
    """Wrap to [-pi, pi)."""
    return torch.remainder(angle + math.pi, 2 * math.pi) - math.pi


def unwrapped(angles: Tensor) -> Tensor:
    """Unwrap ``[..., K]`` along the last dimension, as `numpy.unwrap`."""
    steps = angles.diff(dim=-1)
    wrapped = principal(steps)
    wrapped = torch.where((wrapped == -math.pi) & (steps > 0), math.pi, wrapped)
    turns = torch.where(steps.abs() < math.pi, 0.0, wrapped - steps).cumsum(-1)
    return torch.cat([angles[..., :1], angles[..., 1:] + turns], -1)
