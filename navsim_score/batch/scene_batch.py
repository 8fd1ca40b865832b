"""Scenes as tensors. docs/navsim_score.md §1, navsim_score_scenes.md §11."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from driving_scenes.scene import Scene
from navsim_score.batch.agent_tracks import AgentTracks
from navsim_score.batch.surfaces import Surfaces
from navsim_score.geometry.polylines import Polylines


@dataclass(frozen=True, eq=False)
class ExpertPlan:
    """A scene's plan by the expert."""

    trajectory: Tensor  # [41, 3] x, y, yaw of the rear axle in the scene's frame, at 10 Hz
    centerline: Tensor  # [C, 2] centerline of the route, from the begin of the ego's lane
    route_lanes: tuple[int, ...]  # rows of the lanes of the corrected route


def overridden(plans: Sequence[ExpertPlan], scenes: Sequence[Scene]) -> list[ExpertPlan]:
    """Plans with the trajectory and the centerline that a scene has itself."""
    own_plans = []
    for plan, scene in zip(plans, scenes, strict=True):
        if scene.pdm_trajectory is not None:
            plan = replace(plan, trajectory=scene.pdm_trajectory)
        if scene.centerline is not None:
            plan = replace(plan, centerline=scene.centerline)
        own_plans.append(plan)
    return own_plans


@dataclass(frozen=True, eq=False)
class SceneBatch:
    """S scenes as tensors."""

    scenes: tuple[Scene, ...]  # empty if the tensors were stored
    start: Tensor  # [S, 7] x, y, yaw, vx, vy, ax, ay of the ego now; velocity and acceleration in the ego's frame
    agents: AgentTracks  # [S, A, 41], as logged
    surfaces: Surfaces
    centerlines: Polylines
    pdm: Tensor  # [S, 41, 3] the expert's trajectories at 10 Hz

    def __len__(self) -> int:
        return len(self.start)

    @classmethod
    def of(cls, scenes: Sequence[Scene], plans: Sequence[ExpertPlan], device: torch.device | str = "cpu") -> SceneBatch:
        starts = []
        for scene in scenes:
            ego = scene.ego
            starts.append(torch.cat([ego.poses[-1], ego.velocities[-1], ego.accelerations[-1]]))
        centerlines = padded_lines([plan.centerline for plan in plans])
        return cls(
            tuple(scenes),
            torch.stack(starts).to(device),
            AgentTracks.logged(scenes, device),
            Surfaces.of(scenes, [plan.route_lanes for plan in plans], device),
            Polylines.of(centerlines.to(device)),
            torch.stack([plan.trajectory for plan in plans]).to(device),
        )


def padded_lines(lines: Sequence[Tensor]) -> Tensor:
    """``[S, C, 2]`` of lines ``[c, 2]``, padded with their last points."""
    width = max(len(line) for line in lines)
    padded = []
    for line in lines:
        padding = line[-1].expand(width - len(line), 2)
        padded.append(torch.cat([line, padding]))
    return torch.stack(padded)
