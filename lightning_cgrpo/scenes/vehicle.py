"""The ego vehicle of nuPlan (a Chrysler Pacifica), what a simulated state holds, and the box it occupies.

docs/navsim_score.md §1 and §4; officially nuplan/common/actor_state/vehicle_parameters.py and
pdm_array_representation.py.
"""

from __future__ import annotations

from enum import IntEnum

import torch
from torch import Tensor

WIDTH = 2.297
FRONT_LENGTH = 4.049
"""From the rear axle to the front bumper."""
REAR_LENGTH = 1.127
"""From the rear axle to the rear bumper."""
LENGTH = FRONT_LENGTH + REAR_LENGTH
WHEEL_BASE = 3.089
REAR_AXLE_TO_CENTER = LENGTH / 2 - REAR_LENGTH


class State(IntEnum):
    """Columns of a state of the rear axle; velocity and acceleration are in the ego's frame."""

    X = 0
    Y = 1
    YAW = 2
    VX = 3
    VY = 4
    AX = 5
    AY = 6
    STEER = 7
    STEER_RATE = 8
    YAW_RATE = 9
    YAW_ACC = 10


START = 7
"""A start is the first columns of a state, up to AY: the log says nothing of steering, which starts at 0."""


def centers(poses: Tensor) -> Tensor:
    """Of the box, from the rear axle.

    Args:
        poses: ``[..., 3 or more]`` x, y, yaw, …

    Returns:
        ``[..., 2]``.
    """
    return poses[..., :2] + REAR_AXLE_TO_CENTER * directions(poses)


def corners(poses: Tensor) -> Tensor:
    """Of the box, from the rear axle: front left, rear left, rear right, front right.

    Args:
        poses: ``[..., 3 or more]`` x, y, yaw, …

    Returns:
        ``[..., 4, 2]``.
    """
    forward = directions(poses)
    left = torch.stack([-forward[..., 1], forward[..., 0]], -1) * (WIDTH / 2)
    center = poses[..., :2] + REAR_AXLE_TO_CENTER * forward
    front, rear = center + LENGTH / 2 * forward, center - LENGTH / 2 * forward
    return torch.stack([front + left, rear + left, rear - left, front - left], -2)


def directions(poses: Tensor) -> Tensor:
    """``[..., 2]``, of unit length, where the poses ``[..., 3 or more]`` look to."""
    yaw = poses[..., State.YAW]
    return torch.stack([yaw.cos(), yaw.sin()], -1)
