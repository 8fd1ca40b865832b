"""The constant-velocity planner."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_cgrpo.scenes.scene import Scene

POSES = 8
INTERVAL = 0.5


def constant_velocity(scenes: Sequence[Scene]) -> Tensor:
    """Straight ahead: ``[S, 8, 3]`` x, y, yaw in the egos' frames, every 0.5 s to 4 s."""
    speeds = torch.stack([torch.hypot(*scene.ego.velocities[-1]) for scene in scenes])
    poses = speeds.new_zeros(len(scenes), POSES, 3)
    poses[..., 0] = speeds[:, None] * INTERVAL * torch.arange(1, POSES + 1)
    return poses
