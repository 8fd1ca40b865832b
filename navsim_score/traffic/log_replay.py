"""Logged traffic. docs/navsim_score_scenes.md §10; officially ``log_replay_traffic_agents.py``."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from driving_scenes.vehicle import corners
from navsim_score.batch.scene_batch import SceneBatch
from navsim_score.geometry.boxes import box_corners, boxes_touch
from navsim_score.traffic.traffic import TrafficPolicy, TrafficRollouts


@dataclass(frozen=True)
class LogReplay(TrafficPolicy):
    """Replays the log, without agents that touch the ego at t = 0."""

    def __call__(self, batch: SceneBatch, states: Tensor, scene: Tensor) -> TrafficRollouts:
        agents = batch.agents
        boxes = box_corners(agents.poses[:, :, 0], agents.sizes)
        # Agents that appear later have no box at step 0.
        colliding = boxes_touch(boxes, corners(batch.start)[:, None]) & agents.present[..., 0]
        replayed = replace(agents, present=agents.present & ~colliding[..., None])
        return TrafficRollouts.of(replayed, scene)
