"""Baseline planners, and two-stage scores of planners."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from driving_scenes.scene import Scene
from navsim_score.batch.scene_batch import ExpertPlan
from navsim_score.dialects import EPDMS, Dialect
from navsim_score.scorer import Scorer, Scores
from navsim_score.simulation.interpolation import in_ego
from navsim_score.simulation.timing import DT
from navsim_score.traffic.reactive import Reactive
from navsim_score.traffic.traffic import TrafficPolicy
from navsim_score.two_stage import Drive, Result, endpoints, summaries

SCENES_AT_ONCE = 32
POSES = 8
HUMAN_INTERVAL = 0.5
Planned = tuple[list[int], Tensor, float]
"""R rows of scenes, plans ``[R, P, 3]`` in the ego's frame, seconds between poses."""
Planner = Callable[[Sequence[Scene], Sequence[ExpertPlan]], Planned]


def pdm_closed(scenes: Sequence[Scene], plans: Sequence[ExpertPlan]) -> Planned:
    """The expert's plans."""
    poses = []
    for scene, plan in zip(scenes, plans, strict=True):
        poses.append(in_ego(scene.ego.poses[-1], plan.trajectory[1:]))
    return list(range(len(scenes))), torch.stack(poses), DT


def constant_velocity(scenes: Sequence[Scene], plans: Sequence[ExpertPlan] = ()) -> Planned:
    """Straight ahead at constant speed."""
    speeds = torch.stack([torch.hypot(*scene.ego.velocities[-1]) for scene in scenes])
    poses = speeds.new_zeros(len(scenes), POSES, 3)
    poses[..., 0] = speeds[:, None] * HUMAN_INTERVAL * torch.arange(1, POSES + 1)
    return list(range(len(scenes))), poses, HUMAN_INTERVAL


def human(scenes: Sequence[Scene], plans: Sequence[ExpertPlan]) -> Planned:
    """The human's poses; scenes without a human are left out."""
    drives = {row: scene.human for row, scene in enumerate(scenes) if scene.human is not None}
    poses = torch.zeros(0, POSES, 3, dtype=torch.float64)
    if drives:
        poses = torch.stack(list(drives.values()))
    return list(drives), poses, HUMAN_INTERVAL


BASELINES: Mapping[str, Planner] = {"PDM-Closed": pdm_closed, "constant velocity": constant_velocity, "human": human}


def drives(
    scenes: Sequence[Scene],
    scores: Scores,
    poses: Tensor,
    interval: float,
    numbers: Sequence[int],
    follows: Sequence[int] | None = None,
    dialect: Dialect = EPDMS,
) -> list[Drive]:
    """Drives of G plans in each of R scenes.

    Args:
        scores: of R · G rows.
        poses: ``[R, G, P, 3]``, NaN where malformed.
        interval: seconds between poses.
        numbers: each scene's `Drive.number`.
        follows: if the scenes are follow-ups, the number of each scene's first-stage scene.
        dialect: tells the columns.
    """
    count = poses.shape[1]
    shown = dialect.shown(scores)
    counted = dialect.counted(scores)
    displacement = average_displacement(scenes, poses, interval)
    driven = []
    for row, scene in enumerate(scenes):
        part = slice(row * count, (row + 1) * count)  # rows of the scene's plans
        pose = scene.ego.poses[-1]
        columns = {name: value[part].cpu() for name, value in shown.items()}
        columns["ade"] = displacement[row]
        driven.append(
            Drive(
                number=numbers[row],
                follows=None if follows is None else follows[row],
                name=scene.name,
                previous=scene.previous,
                follow_ups=scene.follow_ups,
                start=pose[:2],
                ends=endpoints(pose, poses[row].to(pose)),
                valid=scores.valid[part].cpu(),
                columns=columns,
                # The frame before or after may be in any other batch; a follow-up that is no scene's name has none.
                states=scores.states[part].cpu() if follows is None else None,
                counted={name: value[part].cpu() for name, value in counted.items()},
            )
        )
    return driven


def average_displacement(scenes: Sequence[Scene], poses: Tensor, interval: float) -> Tensor:
    """``[S, ...]`` meters: mean distance of plans ``[S, ..., P, 3]`` to the human, every 0.5 s for 4 s.

    After its last pose, a plan stands still. NaN without a human or where a plan is NaN.
    """
    poses_per_human_pose = round(HUMAN_INTERVAL / interval)
    displacements = []
    for scene, plans in zip(scenes, poses[..., :2], strict=True):
        if scene.human is None:
            displacements.append(plans.new_full(plans.shape[:-2], torch.nan))
            continue
        # The plan's pose at the time of each of the human's poses.
        at = torch.arange(1, len(scene.human) + 1) * poses_per_human_pose - 1
        at = at.clamp(max=plans.shape[-2] - 1)
        distances = (scene.human[:, :2].to(plans) - plans[..., at, :]).norm(dim=-1)
        displacements.append(distances.mean(-1))
    return torch.stack(displacements)


def evaluate(
    scenes: Sequence[Scene],
    follow_ups: Sequence[Sequence[Scene]] = (),
    planners: Mapping[str, Planner] = BASELINES,
    traffic: TrafficPolicy | None = None,
    dialect: Dialect = EPDMS,
) -> dict[str, Result]:
    """Two-stage scores of each planner, by name.

    Args:
        scenes: of the first stage.
        follow_ups: second-stage scenes of each first-stage scene.
        traffic: by default reactive, as officially.
        dialect: of the scores.
    """
    traffic = Reactive() if traffic is None else traffic
    later: list[Scene] = []
    starts: list[int] = []  # of each follow-up, the first-stage scene's number
    for number, group in enumerate(follow_ups):
        later += group
        starts += [number] * len(group)
    drives_of: dict[str, list[Drive]] = {name: [] for name in planners}
    for stage, follows in ((scenes, None), (later, starts)):
        for first in range(0, len(stage), SCENES_AT_ONCE):
            part = slice(first, first + SCENES_AT_ONCE)
            scorer = dialect.scorer(stage[part], traffic, None)
            numbers = list(range(len(stage)))[part]
            follows_part = None if follows is None else follows[part]
            for name, driven in planned_drives(scorer, planners, numbers, follows_part, dialect).items():
                drives_of[name] += driven
    return summaries(drives_of, dialect, traffic)


def planned_drives(
    scorer: Scorer,
    planners: Mapping[str, Planner],
    numbers: Sequence[int],
    follows: Sequence[int] | None = None,
    dialect: Dialect = EPDMS,
) -> dict[str, list[Drive]]:
    """Score each planner in the scenes that it plans; `numbers`, `follows` and `dialect` as in `drives`."""
    driven: dict[str, list[Drive]] = {}
    for name, planner in planners.items():
        rows, poses, interval = planner(scorer.batch.scenes, scorer.plans)
        driven[name] = []
        if rows:
            driven[name] = drives(
                scenes=[scorer.batch.scenes[row] for row in rows],
                scores=scorer(poses, torch.tensor(rows, dtype=torch.int64), interval),
                poses=poses[:, None],
                interval=interval,
                numbers=[numbers[row] for row in rows],
                follows=None if follows is None else [follows[row] for row in rows],
                dialect=dialect,
            )
    return driven
