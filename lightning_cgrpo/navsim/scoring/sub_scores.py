"""All sub-scores of simulated rows but those that compare: ego progress with the expert's, comfort with the past."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from lightning_cgrpo.navsim.batch.scene_batch import SceneBatch
from lightning_cgrpo.navsim.official_quirks import OFFICIAL, Fixes
from lightning_cgrpo.navsim.scoring.areas import EgoAreas, drivable_area_compliance, ego_areas
from lightning_cgrpo.navsim.scoring.collisions import no_at_fault_collisions
from lightning_cgrpo.navsim.scoring.encounters import Encounters
from lightning_cgrpo.navsim.scoring.lanes import driving_direction_compliance, lane_keeping, traffic_light_compliance
from lightning_cgrpo.navsim.scoring.motion import Motion, Outcome
from lightning_cgrpo.navsim.scoring.progress import raw_progress
from lightning_cgrpo.navsim.scoring.time_to_collision import time_to_collision_within_bound
from lightning_cgrpo.navsim.traffic.traffic import TrafficRollouts


@dataclass(frozen=True, eq=False)
class SubScores:
    """Of R rows.

    Args:
        outcomes: NC, DAC, DDC, TLC, TTC and LK under their official names.
        progress: ``[R]`` meters along the centerline.
        motion: of the rows.
        areas: of the rows.
    """

    outcomes: dict[str, Outcome]
    progress: Tensor
    motion: Motion
    areas: EgoAreas

    @classmethod
    def of(
        cls, batch: SceneBatch, states: Tensor, scene: Tensor, traffic: TrafficRollouts, fixes: Fixes = OFFICIAL
    ) -> SubScores:
        """Score simulated rows.

        Args:
            batch: S scenes.
            states: ``[R, 41, 11]``, all finite.
            scene: ``[R]`` int64, row -> scene.
            traffic: in which the rows drive.
            fixes: of official quirks.
        """
        motion = Motion.of(states, scene)
        areas = ego_areas(batch.surfaces, motion)
        encounters = Encounters.of(motion, traffic, current_speed=fixes.current_speed)
        outcomes = {
            "no_at_fault_collisions": no_at_fault_collisions(motion, areas, encounters),
            "drivable_area_compliance": drivable_area_compliance(motion, areas),
            "driving_direction_compliance": driving_direction_compliance(motion, areas),
            "traffic_light_compliance": traffic_light_compliance(batch.surfaces, motion),
            "time_to_collision_within_bound": time_to_collision_within_bound(motion, areas, encounters),
            "lane_keeping": lane_keeping(batch.centerlines, motion, areas),
        }
        return cls(outcomes, raw_progress(batch.centerlines, motion), motion, areas)
