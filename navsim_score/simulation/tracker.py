"""A kinematic bicycle, and the tracker whose acceleration and steering rate reach the reference in 1 s.

docs/navsim_score.md §3; officially pdm_planner/simulation/. The bicycle (batch_kinematic_bicycle.py) moves by Euler
steps of 0.1 s, with low-pass filtered acceleration and steering rate. The tracker (batch_lqr.py) solves two one-step
problems of a linear-quadratic regulator (LQR), of speed and of lateral errors. Commands have no limit.

Polynomials replace the official ten matrix products per step. In step j the vehicle moves c_j = a + b j meters (a from
its speed, b from the commanded acceleration). Turns of w_j radians a meter change the heading by sum_j c_j w_j, and
the lateral error by sum_j c_j w_j sum_{i>j} c_i: polynomials of a and b, linear in w.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from driving_scenes.vehicle import WHEEL_BASE
from navsim_score.geometry.boxes import wrap_angle
from navsim_score.simulation import profiles
from navsim_score.simulation.interpolation import principal
from navsim_score.simulation.timing import DT

ACCELERATION_LAG = 0.2
STEERING_LAG = 0.05
MAX_STEER = math.pi / 3

TRACKING_STEPS = 10  # the tracker's horizon
SPEED_WEIGHT = 10.0
LATERAL_WEIGHT = 1.0
HEADING_WEIGHT = 10.0
INPUT_WEIGHT = 1.0
STOPPING_SPEED = 0.2
STOPPING_GAIN = 0.5
SPEED_GAIN = TRACKING_STEPS * DT * SPEED_WEIGHT / ((TRACKING_STEPS * DT) ** 2 * SPEED_WEIGHT + INPUT_WEIGHT)


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


class Tracker:
    """Tracks R references ``[R, T, 3]``: x, y, yaw every 0.1 s."""

    def __init__(self, reference: Tensor) -> None:
        self.x, self.y, self.yaw = reference.permute(2, 1, 0).contiguous()
        self.cos = self.yaw.cos()
        self.sin = self.yaw.sin()
        speed = profiles.speeds(self.x, self.y, self.yaw)
        curvature = profiles.curvatures(self.yaw, speed)
        steps = torch.arange(len(speed), device=reference.device)
        last = len(speed) - 1
        self.speed = speed[(steps + TRACKING_STEPS).clamp(max=last)]
        self.stops = self.speed <= STOPPING_SPEED
        # The curvatures within each step's horizon, past the end those of the last step.
        horizon = (steps[:, None] + torch.arange(TRACKING_STEPS, device=reference.device)).clamp(max=last)
        turns = _turn_factors(reference.device)
        self.curvature = torch.einsum("tjr,jn->tnr", curvature[horizon], turns)  # [T - 1, 5, R]
        ahead = torch.arange(TRACKING_STEPS, dtype=reference.dtype, device=reference.device)
        self.by_steer = (turns.sum(0) / WHEEL_BASE)[:, None]
        self.by_rate = (ahead @ turns * (DT / WHEEL_BASE))[:, None]

    def command(self, step: int, state: BicycleState) -> tuple[Tensor, Tensor]:
        """Acceleration in m/s² and steering rate in rad/s, each ``[R]``, for this step."""
        # The acceleration reaches the speed of the reference, or holds the vehicle.
        excess = state.speed - self.speed[step]
        stopping = self.stops[step] & (state.speed <= STOPPING_SPEED)
        acceleration = torch.where(stopping, -STOPPING_GAIN * excess, -SPEED_GAIN * excess)
        # Errors of position and heading now.
        lateral = (state.y - self.y[step]) * self.cos[step] - (state.x - self.x[step]) * self.sin[step]
        heading = wrap_angle(state.yaw - self.yaw[step])

        # Errors at the horizon without steering.
        a = DT * state.speed
        b = DT**2 * acceleration
        terms = torch.stack([a, b, a * a, a * b, b * b])  # [5, R]
        turned, shifted = _heading_and_lateral(terms * (self.by_steer * state.steer - self.curvature[step]))
        lateral = lateral + (TRACKING_STEPS * a + sum(range(TRACKING_STEPS)) * b) * heading + shifted
        heading = wrap_angle(heading + turned)
        # The steering rate that reduces both best.
        by_heading, by_lateral = _heading_and_lateral(terms * self.by_rate)
        pull = LATERAL_WEIGHT * by_lateral * lateral + HEADING_WEIGHT * by_heading * heading
        weight = LATERAL_WEIGHT * by_lateral.square() + HEADING_WEIGHT * by_heading.square() + INPUT_WEIGHT
        return acceleration, torch.where(stopping, 0.0, -pull / weight)


def _heading_and_lateral(terms: Tensor) -> tuple[Tensor, Tensor]:
    """Changes of heading and lateral error, each ``[R]``, from terms ``[5, R]``."""
    return terms[:2].sum(0), terms[2:].sum(0)


@lru_cache
@torch.inference_mode(False)  # training uses it, too
def _turn_factors(device: torch.device) -> Tensor:
    """``[10, 5]``: for 1 radian a meter in step j, factors of a, b (heading) and aa, ab, bb (lateral error)."""
    by_speed = torch.ones(TRACKING_STEPS, dtype=torch.float64)
    by_acceleration = torch.arange(TRACKING_STEPS, dtype=torch.float64)
    # Sums over the later steps.
    after_speed = by_speed.sum() - by_speed.cumsum(0)
    after_acceleration = by_acceleration.sum() - by_acceleration.cumsum(0)
    columns = [
        by_speed,
        by_acceleration,
        by_speed * after_speed,
        by_speed * after_acceleration + by_acceleration * after_speed,
        by_acceleration * after_acceleration,
    ]
    return torch.stack(columns, -1).to(device)
