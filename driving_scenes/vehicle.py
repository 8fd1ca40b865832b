"""nuPlan's ego vehicle (a Chrysler Pacifica) and its simulated state.

docs/navsim_score.md §1 and §4; officially nuplan/common/actor_state/vehicle_parameters.py and
pdm_array_representation.py.
"""

from __future__ import annotations

from enum import IntEnum

import torch
from torch import Tensor

WIDTH = 2.297
FRONT_LENGTH = 4.049
"""Rear axle to front bumper."""
REAR_LENGTH = 1.127
"""Rear axle to rear bumper."""
LENGTH = FRONT_LENGTH + REAR_LENGTH
WHEEL_BASE = 3.089
REAR_AXLE_TO_CENTER = LENGTH / 2 - REAR_LENGTH


class State(IntEnum):
    """Columns of a rear-axle state; velocity and acceleration are in the ego's frame."""

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
"""Columns of a start, up to AY; steering starts at 0, because logs have none."""


def centers(poses: Tensor) -> Tensor:
    """Box centers ``[..., 2]`` of rear-axle poses ``[..., 3 or more]``."""
    return poses[..., :2] + REAR_AXLE_TO_CENTER * directions(poses)


def corners(poses: Tensor) -> Tensor:
    """Box corners ``[..., 4, 2]`` of rear-axle poses: front left, rear left, rear right, front right."""
    forward = directions(poses)
    left = torch.stack([-forward[..., 1], forward[..., 0]], -1) * (WIDTH / 2)
    center = poses[..., :2] + REAR_AXLE_TO_CENTER * forward
    front = center + LENGTH / 2 * forward
    rear = center - LENGTH / 2 * forward
    return torch.stack([front + left, rear + left, rear - left, front - left], -2)


def directions(poses: Tensor) -> Tensor:
    """Unit vectors ``[..., 2]`` in the direction of poses."""
    yaw = poses[..., State.YAW]
    return torch.stack([yaw.cos(), yaw.sin()], -1)
