"""Sub-scores of simulated rows, except EP (needs the expert) and HC (needs the history)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from navsim_score.batch.scene_batch import SceneBatch
from navsim_score.columns import SHORT
from navsim_score.scoring.areas import drivable_area_compliance, ego_areas
from navsim_score.scoring.encounters import Encounters, no_at_fault_collisions, time_to_collision_within_bound
from navsim_score.scoring.lanes import (
    driving_direction_compliance,
    lane_keeping,
    raw_progress,
    traffic_light_compliance,
)
from navsim_score.scoring.motion import Motion, Outcome
from navsim_score.traffic.traffic import TrafficRollouts


@dataclass(frozen=True, eq=False)
class SubScores:
    """Sub-scores of R rows."""

    outcomes: dict[str, Outcome]  # NC, DAC, DDC, TLC, TTC and LK under their official names
    progress: Tensor  # [R] meters along the centerline

    @classmethod
    def of(cls, batch: SceneBatch, states: Tensor, scene: Tensor, traffic: TrafficRollouts) -> SubScores:
        """Score finite states ``[R, 41, 11]`` in scenes ``[R]``."""
        motion = Motion.of(states, scene)
        areas = ego_areas(batch.surfaces, motion)
        encounters = Encounters.of(motion, traffic)
        outcomes = {
            SHORT["NC"]: no_at_fault_collisions(motion, areas, encounters),
            SHORT["DAC"]: drivable_area_compliance(motion, areas),
            SHORT["DDC"]: driving_direction_compliance(motion, areas),
            SHORT["TLC"]: traffic_light_compliance(batch.surfaces, motion),
            SHORT["TTC"]: time_to_collision_within_bound(motion, areas, encounters),
            SHORT["LK"]: lane_keeping(batch.centerlines, motion, areas),
        }
        return cls(outcomes, raw_progress(batch.centerlines, motion))
