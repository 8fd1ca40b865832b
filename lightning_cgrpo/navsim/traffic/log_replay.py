"""Traffic that doesn't react: what was logged.

See docs/navsim_score.md §10; officially ``log_replay_traffic_agents.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from lightning_cgrpo.navsim.batch.scene_batch import SceneBatch
from lightning_cgrpo.navsim.geometry.boxes import box_corners, boxes_touch
from lightning_cgrpo.navsim.traffic.traffic import Traffic, TrafficPolicy
from lightning_cgrpo.scenes.vehicle import corners


@dataclass(frozen=True)
class LogReplay(TrafficPolicy):
    """Replays the log. Agents that touch the ego at t = 0 are left out for good."""

    def __call__(self, batch: SceneBatch, states: Tensor, scene: Tensor) -> Traffic:
        tracks = batch.tracks
        boxes = box_corners(tracks.poses[:, :, 0], tracks.sizes)
        colliding = boxes_touch(
            boxes, corners(batch.start)[:, None]
        )  # those that aren't there yet have no other step 0
        present = tracks.present & ~(colliding & tracks.present[..., 0])[..., None]
        speeds = tracks.velocities.norm(dim=-1)
        return Traffic(tracks.poses, tracks.sizes, present, tracks.types, tracks.first_speed, scene, speeds)
