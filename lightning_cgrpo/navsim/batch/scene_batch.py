"""Scenes side by side as tensors: all that the scores and the traffic read. See docs/navsim_score.md §1 and §11."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lightning_cgrpo.navsim.batch.logged_agents import Tracks
from lightning_cgrpo.navsim.batch.surfaces import Surfaces
from lightning_cgrpo.navsim.geometry.polylines import Polylines
from lightning_cgrpo.scenes.scene import Scene

if TYPE_CHECKING:
    from lightning_cgrpo.navsim.expert.pdm_closed import Plan


@dataclass(frozen=True, eq=False)
class SceneBatch:
    """S scenes.

    Args:
        scenes: as they were given.
        plans: the expert's, one per scene.
        origin: ``[S, 2]`` float64, what was subtracted from all positions: 0 with float64 (so that positions are those
            of the scene, to the last bit), the ego's position with float32, which is too coarse far from the origin.
        start: ``[S, 7]`` x, y, yaw, vx, vy, ax, ay of the ego now; velocity and acceleration in the ego's frame.
        tracks: logged agents.
        surfaces: map polygons.
        centerlines: one per scene.
        pdm: ``[S, 41, 3]`` the expert's plan at 10 Hz.
    """

    scenes: tuple[Scene, ...]
    plans: tuple[Plan, ...]
    origin: Tensor
    start: Tensor
    tracks: Tracks
    surfaces: Surfaces
    centerlines: Polylines
    pdm: Tensor

    def __len__(self) -> int:
        return len(self.scenes)

    @classmethod
    def of(
        cls,
        scenes: Sequence[Scene],
        plans: Sequence[Plan],
        *,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> SceneBatch:
        """Collect the tensors of scenes.

        Args:
            scenes: at least one.
            plans: one per scene.
            dtype: float64, or float32 for speed on devices where float64 is slow.
            device: of the tensors.
        """
        starts = torch.stack([_start(scene) for scene in scenes])
        origin = torch.zeros_like(starts[:, :2]) if dtype == torch.float64 else starts[:, :2]
        starts = torch.cat([starts[:, :2] - origin, starts[:, 2:]], 1)
        lines = [plan.centerline - origin[row] for row, plan in enumerate(plans)]
        width = max(len(line) for line in lines)
        centerlines = torch.stack([torch.cat([line, line[-1].expand(width - len(line), 2)]) for line in lines])
        pdm = torch.stack([plan.trajectory for plan in plans])
        pdm = torch.cat([pdm[..., :2] - origin[:, None], pdm[..., 2:]], -1)
        return cls(
            tuple(scenes),
            tuple(plans),
            origin.to(device),
            starts.to(device, dtype),
            Tracks.of(scenes, origin, dtype, device),
            Surfaces.of(scenes, plans, origin, dtype, device),
            Polylines.of(centerlines.to(device, dtype)),
            pdm.to(device, dtype),
        )


def _start(scene: Scene) -> Tensor:
    ego = scene.ego
    return torch.cat([ego.poses[-1], ego.velocities[-1], ego.accelerations[-1]])
