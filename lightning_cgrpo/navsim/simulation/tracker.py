"""The tracker: asks the vehicle for the acceleration and the steering rate that bring it to its reference in 1 s.

docs/navsim_score.md §3; officially pdm_planner/simulation/batch_lqr.py: two one-step LQR problems, of speed and of
lateral errors, whose inputs are constant over the horizon. There is no limit to what is asked.

The official code multiplies ten matrices for each row and step. Over the horizon, the vehicle moves c_j = a + b j in
step j (a by its speed, b by the acceleration asked for). If step j turns it by w_j a meter, its heading changes by
sum_j c_j w_j and its lateral error by sum_j c_j w_j sum_{i>j} c_i: polynomials of a and b (`_TERMS`) whose coefficients
are linear in w. Those of the reference's curvature are computed once for all steps.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from lightning_cgrpo.navsim.geometry.boxes import wrap_angle
from lightning_cgrpo.navsim.simulation import profiles
from lightning_cgrpo.navsim.simulation.bicycle import Motion
from lightning_cgrpo.navsim.simulation.timing import DT
from lightning_cgrpo.scenes.vehicle import WHEEL_BASE

HORIZON = 10
SPEED_WEIGHT = 10.0
LATERAL_WEIGHT = 1.0
HEADING_WEIGHT = 10.0
INPUT_WEIGHT = 1.0
STOPPING_SPEED = 0.2
STOPPING_GAIN = 0.5
SPEED_GAIN = HORIZON * DT * SPEED_WEIGHT / ((HORIZON * DT) ** 2 * SPEED_WEIGHT + INPUT_WEIGHT)


class Tracker:
    """Of R references.

    Args:
        reference: ``[R, T, 3]`` x, y, yaw every 0.1 s.
    """

    def __init__(self, reference: Tensor) -> None:
        self.x, self.y, self.yaw = reference.permute(2, 1, 0).contiguous()
        self.cos, self.sin = self.yaw.cos(), self.yaw.sin()
        speed = profiles.speeds(self.x, self.y, self.yaw)
        curvature = profiles.curvatures(self.yaw, speed)
        steps = torch.arange(len(speed), device=reference.device)
        last = len(speed) - 1
        self.speed = speed[(steps + HORIZON).clamp(max=last)]
        self.stops = self.speed <= STOPPING_SPEED
        seen = curvature[(steps[:, None] + torch.arange(HORIZON, device=reference.device)).clamp(max=last)]
        turns = _turns(reference.dtype, reference.device)
        self.curvature = torch.einsum("tjr,jn->tnr", seen, turns)  # [T - 1, 5, R]
        ahead = torch.arange(HORIZON, dtype=reference.dtype, device=reference.device)
        self.by_steer = (turns.sum(0) / WHEEL_BASE)[:, None]
        self.by_rate = (ahead @ turns * (DT / WHEEL_BASE))[:, None]

    def command(self, step: int, motion: Motion) -> tuple[Tensor, Tensor]:
        """The acceleration and the steering rate, each ``[R]``, to ask for in the interval that begins with a step."""
        excess = motion.speed - self.speed[step]
        stopping = self.stops[step] & (motion.speed <= STOPPING_SPEED)
        acceleration = torch.where(stopping, -STOPPING_GAIN * excess, -SPEED_GAIN * excess)
        lateral = (motion.y - self.y[step]) * self.cos[step] - (motion.x - self.x[step]) * self.sin[step]
        heading = wrap_angle(motion.yaw - self.yaw[step])

        a, b = DT * motion.speed, DT**2 * acceleration
        terms = torch.stack([a, b, a * a, a * b, b * b])
        turned, shifted = _sums(terms * (self.by_steer * motion.steer - self.curvature[step]))
        lateral = lateral + (HORIZON * a + sum(range(HORIZON)) * b) * heading + shifted
        heading = wrap_angle(heading + turned)
        by_heading, by_lateral = _sums(terms * self.by_rate)
        pull = LATERAL_WEIGHT * by_lateral * lateral + HEADING_WEIGHT * by_heading * heading
        weight = LATERAL_WEIGHT * by_lateral.square() + HEADING_WEIGHT * by_heading.square() + INPUT_WEIGHT
        return acceleration, torch.where(stopping, 0.0, -pull / weight)


def _sums(terms: Tensor) -> tuple[Tensor, Tensor]:
    """Changes of heading and of lateral error, each ``[R]``, from the terms ``[5, R]``."""
    return terms[:2].sum(0), terms[2:].sum(0)


@lru_cache
def _turns(dtype: torch.dtype, device: torch.device) -> Tensor:
    """``[10, 5]``: what turning by 1 a meter in one step adds to the coefficients of a, b (heading), aa, ab, bb."""
    by_speed = torch.ones(HORIZON, dtype=torch.float64)
    by_acceleration = torch.arange(HORIZON, dtype=torch.float64)
    after_speed, after_acceleration = (row.sum() - row.cumsum(0) for row in (by_speed, by_acceleration))
    columns = [
        by_speed,
        by_acceleration,
        by_speed * after_speed,
        by_speed * after_acceleration + by_acceleration * after_speed,
        by_acceleration * after_acceleration,
    ]
    return torch.stack(columns, -1).to(device, dtype)
