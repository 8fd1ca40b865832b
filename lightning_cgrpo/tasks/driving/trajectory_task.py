"""DrivingTask for planners of trajectories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from driving_scenes.scene import Scene
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.rollout import Rollouts, Signal
from lightning_cgrpo.objective.signals import SignalKind
from lightning_cgrpo.tasks.driving.answers import POSE_INTERVAL, SCORED_SECONDS
from lightning_cgrpo.tasks.driving.task import DrivingTask

OF_TEXTS = ("tokens", "truncated")
POSES = round(SCORED_SECONDS / POSE_INTERVAL)
"""Poses of an answer."""


class TrajectoryTask(DrivingTask):
    """`DrivingTask` for planners whose sampler reports ``info["poses"]`` ``[B, G, 16, 3]``, every 0.25 s.

    Its signals are those of `DrivingTask` but ``tokens`` and ``truncated``. Poses that are not finite are malformed.

    Args: see `DrivingTask`; `answer` is not read.

    Raises:
        UserError: poses of other shapes, from `score`.
    """

    signals: Mapping[str, SignalKind] = {
        name: kind for name, kind in DrivingTask.signals.items() if name not in OF_TEXTS
    }

    def answers(self, rollouts: Rollouts) -> Sequence[Tensor]:
        poses = rollouts.info.get("poses")
        expected = [*rollouts.mask.shape[:2], POSES, 3]
        got = list(poses.shape) if isinstance(poses, Tensor) else type(poses).__name__
        if not isinstance(poses, Tensor) or got != expected:
            raise UserError(
                f'Expected info["poses"] of the rollouts to be {expected}, {POSES} poses every {POSE_INTERVAL} s of '
                f"each answer, but got {got}, try sampler.inputs whose answers() interpolates the planner's poses."
            )
        return list(poses)

    def _read(self, scenes: Sequence[Scene], answers: Sequence[Any]) -> Tensor:
        poses = torch.stack(list(answers)).flatten(0, 1).cpu()  # [B G, P, 3]
        is_finite = poses.isfinite().all((1, 2), keepdim=True)
        return torch.where(is_finite, poses, torch.nan)

    def _lengths(self, rollouts: Rollouts) -> dict[str, Signal]:
        return {}
