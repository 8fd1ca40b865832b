"""Speeds and curvatures of a reference, by regularized least squares.

docs/navsim_score.md §3; officially pdm_planner/simulation/batch_lqr_utils.py. Instead of the official dense inverses:

- Speeds are a fixed linear map of displacements along headings. Headings drop out of the normal equations: the
  matrix's columns are unit vectors times a fixed matrix.
- The curvature fit is a chain of curvatures and pairs of neighbors. A forward and a backward pass solve the chain
  without cancellation, even where the reference stands.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from navsim_score.simulation.timing import DT

ACCELERATION_PENALTY = 1e-4
CURVATURE_RATE_PENALTY = 1e-2
INITIAL_CURVATURE_PENALTY = 1e-10  # makes the fit unique where the reference stands still


def speeds(x: Tensor, y: Tensor, yaw: Tensor) -> Tensor:
    """Speeds ``[M, R]`` in m/s of references ``[M + 1, R]`` with a pose every 0.1 s."""
    along = x.diff(dim=0) * yaw[:-1].cos() + y.diff(dim=0) * yaw[:-1].sin()
    return _speed_map(len(along), along.device) @ along


def curvatures(yaw: Tensor, speed: Tensor) -> Tensor:
    """Curvatures ``[M, R]`` in 1/m, positive to the left, from yaw ``[M + 1, R]`` and `speeds`."""
    turn = yaw.diff(dim=0)
    reach = DT * speed
    data = reach * torch.atan2(turn.sin(), turn.cos())
    weight = reach.square()
    stiffness = CURVATURE_RATE_PENALTY / DT**2
    # Forward: the equations up to each step, with the earlier curvatures eliminated.
    weights = [weight[0] + INITIAL_CURVATURE_PENALTY]
    sums = [data[0]]
    for step in range(1, len(speed)):
        passed = stiffness / (weights[-1] + stiffness)
        weights.append(weights[-1] * passed + weight[step])
        sums.append(sums[-1] * passed + data[step])
    # Backward: the last curvature, and each earlier one from its successor.
    solved = [sums[-1] / weights[-1]]
    for step in reversed(range(len(speed) - 1)):
        solved.append((sums[step] + stiffness * solved[-1]) / (weights[step] + stiffness))
    return torch.stack(solved[::-1])


@lru_cache
@torch.inference_mode(False)  # training uses it, too
def _speed_map(count: int, device: torch.device) -> Tensor:
    """``[M, M]`` map from displacements to speeds; unknowns are the first speed and M - 1 accelerations."""
    distances = DT**2 * torch.ones(count, count, dtype=torch.float64).tril()
    distances[:, 0] = DT
    # The official code means to penalize jerk, but overwrites all but the last entry of the difference matrix. So the
    # accelerations themselves are penalized, and the last difference.
    penalized = torch.zeros(count - 2, count, dtype=torch.float64)
    penalized[:, 1:-1] = torch.eye(count - 2)
    penalized[-1, -1] = -1
    normal = distances.T @ distances + ACCELERATION_PENALTY * penalized.T @ penalized
    fit: Tensor = distances @ torch.linalg.solve(normal, distances.T) / DT
    return fit.to(device)
