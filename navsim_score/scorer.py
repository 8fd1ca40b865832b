"""The NAVSIM-v2 score (EPDMS) of many candidates and scenes (docs/navsim_score.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from driving_scenes.errors import InputError
from driving_scenes.scene import Scene
from navsim_score.batch.scene_batch import ExpertPlan, SceneBatch, overridden
from navsim_score.columns import (
    COLUMNS,
    EGO_PROGRESS,
    EXTENDED_COMFORT,
    SHORT,
    epdms,
    human_filtered,
    multiplicative_metrics_prod,
    weighted_average,
)
from navsim_score.expert.pdm_closed import plan
from navsim_score.pdms import PdmsColumns, by_pdms
from navsim_score.scoring.areas import EgoAreas, drivable_area_compliance, ego_areas
from navsim_score.scoring.comfort import HistoryComfort
from navsim_score.scoring.encounters import Encounters, no_at_fault_collisions
from navsim_score.scoring.lanes import (
    driving_direction_compliance,
    ego_progress,
    raw_progress,
    traffic_light_compliance,
)
from navsim_score.scoring.motion import Motion, take
from navsim_score.scoring.sub_scores import SubScores
from navsim_score.simulation.simulate import simulate, track
from navsim_score.traffic.log_replay import LogReplay
from navsim_score.traffic.traffic import TrafficPolicy, TrafficRollouts

ROWS_AT_ONCE = 512
"""More rows only take more memory."""


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores of R rows (candidates). Invalid rows have NaN (but in `pdm_progress`), steps of -1 and no comfort."""

    columns: dict[str, Tensor]  # [R] by official name, after the human filter
    unfiltered: dict[str, Tensor]  # [R] by official name, before the human filter
    steps: dict[str, Tensor]  # [R] int64, step of the first violation before the filter, or -1; not of EP and HC
    comfort: Tensor  # [R, 6] bool, see `comfort.CHECKS`
    progress: Tensor  # [R] meters along the centerline
    pdm_progress: Tensor  # [R] meters of the scene's expert
    states: Tensor  # [R, 41, 11] float64, simulated, in the scene's frame; see `vehicle.State`
    valid: Tensor  # [R] bool, False where poses or simulated states are not finite
    pdms: dict[str, Tensor]  # [R] columns of NAVSIM 1.1; empty unless asked for

    @property
    def multiplicative_metrics_prod(self) -> Tensor:
        return multiplicative_metrics_prod(self.columns)

    @property
    def weighted_average(self) -> Tensor:
        """``[R]`` WAT, with extended comfort where known."""
        return weighted_average(self.columns)

    @property
    def epdms(self) -> Tensor:
        """``[R]``, with extended comfort where known."""
        return epdms(self.columns)

    @property
    def pdm_score(self) -> Tensor:
        """``[R]`` official column: EPDMS without human filter and extended comfort."""
        return epdms(self.unfiltered)

    def with_extended_comfort(self, comfort: Tensor) -> Scores:
        """Add EC ``[R]`` of `comfort.extended_comfort`; NaN without a previous frame."""
        column = torch.where(self.valid, comfort.to(self.progress), torch.nan)
        return replace(self, columns=self.columns | {EXTENDED_COMFORT: column})

    @classmethod
    def cat(cls, parts: Sequence[Scores]) -> Scores:
        joined: dict[str, Any] = {}
        for field in fields(cls):
            values = [getattr(part, field.name) for part in parts]
            if isinstance(values[0], Tensor):
                joined[field.name] = torch.cat(values)
                continue
            by_column = {}
            for column in values[0]:
                by_column[column] = torch.cat([value[column] for value in values])
            joined[field.name] = by_column
        return cls(**joined)

    def violations(self) -> dict[str, Tensor]:
        """``[R]`` by column, but EP: 1 where the sub-score is below 1 or the row invalid, 0 where 1 or unknown."""
        violations = {}
        for name, value in self.columns.items():
            if name != EGO_PROGRESS:
                violated = (1 - value).nan_to_num(0).ceil()
                violations[name] = torch.where(self.valid, violated, 1.0)
        return violations

    def rewards(self) -> Tensor:
        """``[R]`` `weighted_average`, 0 in invalid rows."""
        return self.weighted_average.nan_to_num(0)


class Scorer:
    """Scores candidates of S scenes; construction plans and prepares the scenes once.

    Args:
        scenes: at least one.
        traffic: behavior of agents, by default log replay.
        plans: instead of PDM-Closed's. A scene's own `pdm_trajectory` and `centerline` come first.
        human_filter: set sub-scores to 1 where the human's is 0, but EP and HC, and not in synthetic scenes.
        pdms: compute NAVSIM 1.1's sub-scores too, which always replay the log; they plan each scene once more.
        device: to compute on.

    Raises:
        InputError: no scenes, or another number of plans.
    """

    def __init__(
        self,
        scenes: Sequence[Scene],
        traffic: TrafficPolicy | None = None,
        *,
        plans: Sequence[ExpertPlan] | None = None,
        human_filter: bool = True,
        pdms: bool = False,
        device: torch.device | str = "cpu",
    ) -> None:
        if not scenes:
            raise InputError("Expected at least one scene, but got none.")
        plans = plan(scenes) if plans is None else plans
        if len(plans) != len(scenes):
            raise InputError(f"Expected one plan per scene, but got {len(plans)} of {len(scenes)} scenes.")
        self.traffic = LogReplay() if traffic is None else traffic
        self.plans = overridden(plans, scenes)
        self.batch = SceneBatch.of(scenes, self.plans, device)
        self.comfort = HistoryComfort.of([scene.ego for scene in scenes], device)
        self.expert = Expert.of(self.batch)
        self.human = self._human_columns() if human_filter else None
        self._pdms: PdmsColumns | None = None
        if pdms:
            self._pdms = PdmsColumns(self.batch, overridden(plan(scenes, by_pdms), scenes))

    @classmethod
    def prepared(
        cls, batch: SceneBatch, comfort: HistoryComfort, expert: Expert, human: dict[str, Tensor] | None
    ) -> Scorer:
        """A scorer of scenes that were prepared before, in replayed traffic.

        Args:
            batch: may lack `scenes`.
            human: ``[S]`` by official name, of the humans' drives; None without a filter.
        """
        scorer = cls.__new__(cls)
        scorer.traffic = LogReplay()
        scorer.plans = []
        scorer.batch = batch
        scorer.comfort = comfort
        scorer.expert = expert
        scorer.human = human
        scorer._pdms = None
        return scorer

    def __call__(self, poses: Tensor, scene: Tensor, interval: float = 0.5) -> Scores:
        """Score R candidates.

        Args:
            poses: ``[R, P, 3]`` x, y, yaw in the ego's frame at t = 0, at ``interval``, 2 ``interval``, … seconds.
            scene: ``[R]`` int64, row -> scene.

        Raises:
            InputError: wrong shapes, or an unknown scene.
        """
        if poses.dim() != 3 or poses.shape[2] != 3 or not poses.shape[1] or scene.shape != poses.shape[:1]:
            raise InputError(
                f"Expected poses [R, P, 3] and scene [R], but got {list(poses.shape)} and {list(scene.shape)}."
            )
        if len(scene) and not 0 <= int(scene.min()) <= int(scene.max()) < len(self.batch):
            raise InputError(f"Expected scenes from 0 to {len(self.batch) - 1}, but got {scene.unique().tolist()}.")
        poses = poses.to(self.batch.start)
        scene = scene.to(self.batch.start.device)
        scores = []
        for some_poses, some_scenes in zip(poses.split(ROWS_AT_ONCE), scene.split(ROWS_AT_ONCE), strict=True):
            scores.append(self._score_chunk(some_poses, some_scenes, interval))
        return Scores.cat(scores)

    def _score_chunk(self, poses: Tensor, scene: Tensor, interval: float) -> Scores:
        # 1. A car follows the plan, 2. traffic plays, 3. sub-scores judge the drive in the traffic.
        states, valid = self._simulate_valid(poses, scene, interval)
        traffic = self.traffic(self.batch, states, scene)
        scores = SubScores.of(self.batch, states, scene, traffic)
        unfiltered = {name: outcome.value for name, outcome in scores.outcomes.items()}
        # 4. Progress is relative to the expert's in the same traffic, and comfort includes the history.
        product = multiplicative_metrics_prod(unfiltered)
        pdm_progress, pdm_product = self.expert.in_traffic(traffic, scene)
        comfort = self.comfort(states, scene)
        unfiltered |= {
            EGO_PROGRESS: ego_progress(scores.progress, product, pdm_progress, pdm_product),
            SHORT["HC"]: comfort.all(1).to(states),
        }
        unfiltered = {name: torch.where(valid, unfiltered[name], torch.nan) for name in COLUMNS}
        # 5. What the human violates too is lifted.
        columns = unfiltered
        if self.human is not None:
            human = {name: value[scene] for name, value in self.human.items()}
            columns = human_filtered(columns, human, valid)
        pdms_columns = {} if self._pdms is None else self._pdms(states, scene)
        return Scores(
            columns=columns,
            unfiltered=unfiltered,
            steps={name: torch.where(valid, outcome.step, -1) for name, outcome in scores.outcomes.items()},
            comfort=comfort & valid[:, None],
            progress=torch.where(valid, scores.progress, torch.nan),
            pdm_progress=pdm_progress,
            states=torch.where(valid[:, None, None], states, torch.nan),
            valid=valid,
            pdms={name: torch.where(valid, value, torch.nan) for name, value in pdms_columns.items()},
        )

    def _simulate_valid(self, poses: Tensor, scene: Tensor, interval: float) -> tuple[Tensor, Tensor]:
        """States ``[R, 41, 11]``, and ``[R]`` bool whether plan and states are finite; else the ego stands."""
        start = self.batch.start[scene]
        states = simulate(start, poses, interval)
        valid = states.isfinite().all((1, 2)) & poses.isfinite().all((1, 2))
        standing = torch.cat([start[:, :3], start.new_zeros(len(start), states.shape[2] - 3)], 1)
        return torch.where(valid[:, None, None], states, standing[:, None]), valid

    def _human_columns(self) -> dict[str, Tensor]:
        """Values ``[S]`` of the humans' drives; 1 for EP, HC, synthetic scenes, and scenes without a human."""
        start = self.batch.start
        columns = {name: start.new_ones(len(self.batch)) for name in COLUMNS}
        rows = []
        drives = []
        for row, scene in enumerate(self.batch.scenes):
            if scene.human is not None and not scene.synthetic:
                rows.append(row)
                drives.append(scene.human)
        if rows:
            scene_of_row = torch.tensor(rows, device=start.device)
            states, _ = self._simulate_valid(torch.stack(drives).to(start), scene_of_row, 0.5)
            traffic = self.traffic(self.batch, states, scene_of_row)
            scores = SubScores.of(self.batch, states, scene_of_row, traffic)
            for name, outcome in scores.outcomes.items():
                columns[name][scene_of_row] = outcome.value
        return columns


@dataclass(frozen=True, eq=False)
class Expert:
    """Simulated expert plans; `product` is DAC * DDC * TLC, because only NC depends on traffic."""

    motion: Motion
    areas: EgoAreas
    progress: Tensor
    product: Tensor

    @classmethod
    def of(cls, batch: SceneBatch) -> Expert:
        motion = Motion.of(track(batch.start, batch.pdm), torch.arange(len(batch), device=batch.start.device))
        areas = ego_areas(batch.surfaces, motion)
        product = (
            drivable_area_compliance(motion, areas).value
            * driving_direction_compliance(motion, areas).value
            * traffic_light_compliance(batch.surfaces, motion).value
        )
        return cls(motion, areas, raw_progress(batch.centerlines, motion), product)

    def in_traffic(self, traffic: TrafficRollouts, scene: Tensor) -> tuple[Tensor, Tensor]:
        """Progress ``[R]`` and NC * DAC * DDC * TLC ``[R]`` in each row's traffic."""
        # Rows that share a rollout of traffic share the expert's collisions.
        rollouts, back = traffic.of_row.unique(return_inverse=True)
        rows = torch.empty_like(rollouts).scatter_(0, back, scene)  # a rollout is of one scene
        motion = take(self.motion, rows)
        areas = take(self.areas, rows)
        encounters = Encounters.of(motion, replace(traffic, of_row=rollouts))
        collisions = no_at_fault_collisions(motion, areas, encounters)
        return self.progress[scene], collisions.value[back] * self.product[scene]
