"""Speeds and curvatures of a reference, from its poses, by regularized least squares.

docs/navsim_score.md §3; officially pdm_planner/simulation/batch_lqr_utils.py, which inverts two dense matrices for each
row. Both fits have a structure that makes them cheap and more exact:

- The columns of the velocity fit's matrix are unit vectors times a fixed matrix, so headings drop out of its normal
  equations: speeds are a fixed linear map of the displacements along the headings.
- The curvature fit is, in terms of the curvatures themselves, a chain: a term for each and one for each pair of
  neighbors. One pass forward, which sums up what is known so far, and one backward solve it, without a subtraction
  and so without cancellation, also where the reference stands still.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from lightning_cgrpo.navsim.simulation.timing import DT

ACCELERATION_PENALTY = 1e-4
CURVATURE_RATE_PENALTY = 1e-2
INITIAL_CURVATURE_PENALTY = 1e-10
"""Keeps the fit unique where the reference stands still."""


def speeds(x: Tensor, y: Tensor, yaw: Tensor) -> Tensor:
    """``[M, R]`` speeds of references ``[M + 1, R]``, in every interval of 0.1 s."""
    along = x.diff(dim=0) * yaw[:-1].cos() + y.diff(dim=0) * yaw[:-1].sin()
    return _speed_map(len(along), along.dtype, along.device) @ along


def curvatures(yaw: Tensor, speed: Tensor) -> Tensor:
    """``[M, R]`` curvatures of references, from their yaw ``[M + 1, R]`` and `speeds`."""
    turn = yaw.diff(dim=0)
    reach = DT * speed
    data = reach * torch.atan2(turn.sin(), turn.cos())
    weight = reach.square()
    stiffness = CURVATURE_RATE_PENALTY / DT**2
    known, sums = [weight[0] + INITIAL_CURVATURE_PENALTY], [data[0]]
    for step in range(1, len(speed)):
        passed = stiffness / (known[-1] + stiffness)
        known.append(known[-1] * passed + weight[step])
        sums.append(sums[-1] * passed + data[step])
    found = [sums[-1] / known[-1]]
    for step in reversed(range(len(speed) - 1)):
        found.append((sums[step] + stiffness * found[-1]) / (known[step] + stiffness))
    return torch.stack(found[::-1])


@lru_cache
def _speed_map(count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """``[M, M]``. The unknowns are the first speed and M - 1 accelerations."""
    distances = DT**2 * torch.ones(count, count, dtype=torch.float64).tril()
    distances[:, 0] = DT
    # Officially meant to be jerk, the differences of accelerations, but the ones of the difference matrix are
    # overwritten except for the last: accelerations themselves are penalized, and the last difference.
    penalized = torch.zeros(count - 2, count, dtype=torch.float64)
    penalized[:, 1:-1] = torch.eye(count - 2)
    penalized[-1, -1] = -1
    normal = distances.T @ distances + ACCELERATION_PENALTY * penalized.T @ penalized
    fit: Tensor = distances @ torch.linalg.solve(normal, distances.T) / DT
    return fit.to(device, dtype)
