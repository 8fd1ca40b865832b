"""The kinematic bicycle: how a vehicle moves in 0.1 s when it is asked for an acceleration and a steering rate.

docs/navsim_score.md §3; officially pdm_planner/simulation/batch_kinematic_bicycle.py. Euler steps; acceleration and
steering follow what is asked as low-pass filters.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor

from lightning_cgrpo.navsim.simulation.interpolation import principal
from lightning_cgrpo.navsim.simulation.timing import DT
from lightning_cgrpo.scenes.vehicle import WHEEL_BASE

ACCELERATION_LAG = 0.2
STEERING_LAG = 0.05
MAX_STEER = math.pi / 3


class Motion(NamedTuple):
    """The state of R vehicles: each ``[R]``, of the rear axle."""

    x: Tensor
    y: Tensor
    yaw: Tensor
    speed: Tensor
    acceleration: Tensor
    steer: Tensor
    steer_rate: Tensor
    yaw_rate: Tensor


def advance(motion: Motion, acceleration: Tensor, steer_rate: Tensor) -> Motion:
    """The state after 0.1 s; acceleration and steering rate ``[R]`` are those asked for. Speed may become negative."""
    reached = motion.acceleration + DT / (DT + ACCELERATION_LAG) * (acceleration - motion.acceleration)
    rate = DT / (DT + STEERING_LAG) * steer_rate
    speed = motion.speed + DT * reached
    steer = (motion.steer + DT * rate).clamp(-MAX_STEER, MAX_STEER)
    return Motion(
        x=motion.x + DT * (motion.speed * motion.yaw.cos()),
        y=motion.y + DT * (motion.speed * motion.yaw.sin()),
        yaw=principal(motion.yaw + DT * motion.yaw_rate),  # that of the old speed and steering
        speed=speed,
        acceleration=reached,
        steer=steer,
        steer_rate=rate,  # also where the steering angle is at its limit
        yaw_rate=speed * steer.tan() / WHEEL_BASE,
    )
