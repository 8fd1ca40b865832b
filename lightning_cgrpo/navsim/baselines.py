"""Baseline planners."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from lightning_cgrpo.navsim.batch.scene_batch import ExpertPlan
from lightning_cgrpo.navsim.simulation.interpolation import in_ego
from lightning_cgrpo.navsim.simulation.timing import DT
from lightning_cgrpo.scenes.scene import Scene

POSES, HUMAN_INTERVAL = 8, 0.5
Planned = tuple[list[int], Tensor, float]
"""R rows of scenes, plans ``[R, P, 3]`` in the ego's frame, seconds between poses."""
Planner = Callable[[Sequence[Scene], Sequence[ExpertPlan]], Planned]


def pdm_closed(scenes: Sequence[Scene], plans: Sequence[ExpertPlan]) -> Planned:
    """The expert's plans."""
    pairs = zip(scenes, plans, strict=True)
    poses = torch.stack([in_ego(scene.ego.poses[-1], plan.trajectory[1:]) for scene, plan in pairs])
    return list(range(len(scenes))), poses, DT


def constant_velocity(scenes: Sequence[Scene], plans: Sequence[ExpertPlan] = ()) -> Planned:
    """Straight ahead at constant speed."""
    speeds = torch.stack([torch.hypot(*scene.ego.velocities[-1]) for scene in scenes])
    poses = speeds.new_zeros(len(scenes), POSES, 3)
    poses[..., 0] = speeds[:, None] * HUMAN_INTERVAL * torch.arange(1, POSES + 1)
    return list(range(len(scenes))), poses, HUMAN_INTERVAL


def human(scenes: Sequence[Scene], plans: Sequence[ExpertPlan]) -> Planned:
    """The human's poses; scenes without a human are left out."""
    drives = {row: scene.human for row, scene in enumerate(scenes) if scene.human is not None}
    poses = torch.stack(list(drives.values())) if drives else torch.zeros(0, POSES, 3, dtype=torch.float64)
    return list(drives), poses, HUMAN_INTERVAL


BASELINES: Mapping[str, Planner] = {"PDM-Closed": pdm_closed, "constant velocity": constant_velocity, "human": human}
