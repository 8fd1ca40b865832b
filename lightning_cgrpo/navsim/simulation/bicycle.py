"""Kinematic bicycle: Euler steps of 0.1 s, low-pass filtered acceleration and steering rate.

docs/navsim_score.md §3; officially pdm_planner/simulation/batch_kinematic_bicycle.py.
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


class BicycleState(NamedTuple):
    """Rear axles of R vehicles, each ``[R]``."""

    x: Tensor
    y: Tensor
    yaw: Tensor
    speed: Tensor
    acceleration: Tensor
    steer: Tensor
    steer_rate: Tensor
    yaw_rate: Tensor


def advance(state: BicycleState, acceleration: Tensor, steer_rate: Tensor) -> BicycleState:
    """Advance 0.1 s with commanded accelerations and steering rates ``[R]``. Speed may become negative."""
    reached = state.acceleration + DT / (DT + ACCELERATION_LAG) * (acceleration - state.acceleration)
    rate = DT / (DT + STEERING_LAG) * steer_rate
    speed = state.speed + DT * reached
    steer = (state.steer + DT * rate).clamp(-MAX_STEER, MAX_STEER)
    return BicycleState(
        x=state.x + DT * (state.speed * state.yaw.cos()),
        y=state.y + DT * (state.speed * state.yaw.sin()),
        yaw=principal(state.yaw + DT * state.yaw_rate),  # the yaw rate of the old speed and steering
        speed=speed,
        acceleration=reached,
        steer=steer,
        steer_rate=rate,  # not clamped at the steering limit
        yaw_rate=speed * steer.tan() / WHEEL_BASE,
    )
