"""Scenes as tensors. docs/navsim_score.md §1 and §11."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lightning_cgrpo.navsim.batch.agent_tracks import AgentTracks
from lightning_cgrpo.navsim.batch.surfaces import Surfaces
from lightning_cgrpo.navsim.geometry.polylines import Polylines
from lightning_cgrpo.scenes.scene import Scene


@dataclass(frozen=True, eq=False)
class ExpertPlan:
    """A scene's plan by the expert."""

    trajectory: Tensor  # [41, 3] x, y, yaw of the rear axle in the scene's frame, at 10 Hz
    centerline: Tensor  # [C, 2] centerline of the route, from the begin of the ego's lane
    route_lanes: tuple[int, ...]  # rows of the lanes of the corrected route


def overridden(plans: Sequence[ExpertPlan], scenes: Sequence[Scene]) -> list[ExpertPlan]:
    """Plans with the trajectory and the centerline that a scene has itself."""
    return [
        replace(
            plan,
            trajectory=plan.trajectory if scene.pdm_trajectory is None else scene.pdm_trajectory,
            centerline=plan.centerline if scene.centerline is None else scene.centerline,
        )
        for plan, scene in zip(plans, scenes, strict=True)
    ]


@dataclass(frozen=True, eq=False)
class SceneBatch:
    """S scenes as tensors."""

    scenes: tuple[Scene, ...]
    origin: Tensor  # [S, 2] float64, subtracted from all positions: the ego's position in float32, 0 in float64
    start: Tensor  # [S, 7] x, y, yaw, vx, vy, ax, ay of the ego now; velocity and acceleration in the ego's frame
    agents: AgentTracks  # [S, A, 41], as logged
    surfaces: Surfaces
    centerlines: Polylines
    pdm: Tensor  # [S, 41, 3] the expert's trajectories at 10 Hz

    def __len__(self) -> int:
        return len(self.scenes)

    @classmethod
    def of(
        cls,
        scenes: Sequence[Scene],
        plans: Sequence[ExpertPlan],
        *,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> SceneBatch:
        egos = [scene.ego for scene in scenes]
        starts = torch.stack([torch.cat([ego.poses[-1], ego.velocities[-1], ego.accelerations[-1]]) for ego in egos])
        origin = torch.zeros_like(starts[:, :2]) if dtype == torch.float64 else starts[:, :2]
        starts = torch.cat([starts[:, :2] - origin, starts[:, 2:]], 1)
        lines = [plan.centerline - origin[row] for row, plan in enumerate(plans)]
        width = max(len(line) for line in lines)
        centerlines = torch.stack([torch.cat([line, line[-1].expand(width - len(line), 2)]) for line in lines])
        pdm = torch.stack([plan.trajectory for plan in plans])
        pdm = torch.cat([pdm[..., :2] - origin[:, None], pdm[..., 2:]], -1)
        return cls(
            tuple(scenes),
            origin.to(device),
            starts.to(device, dtype),
            AgentTracks.logged(scenes, origin, dtype, device),
            Surfaces.of(scenes, [plan.route_lanes for plan in plans], origin, dtype, device),
            Polylines.of(centerlines.to(device, dtype)),
            pdm.to(device, dtype),
        )
