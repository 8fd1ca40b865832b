"""Two-stage scores of planners."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from lightning_cgrpo.navsim.baselines import BASELINES, HUMAN_INTERVAL, Planner
from lightning_cgrpo.navsim.dialects import EPDMS, Dialect, Epdms
from lightning_cgrpo.navsim.scorer import Scorer
from lightning_cgrpo.navsim.traffic.reactive import Reactive
from lightning_cgrpo.navsim.traffic.traffic import TrafficPolicy
from lightning_cgrpo.navsim.two_stage import Drive, Result, endpoints, summaries
from lightning_cgrpo.scenes.scene import Scene

SCENES_AT_ONCE = 32


def drives(
    scorer: Scorer,
    rows: Sequence[int],
    poses: Tensor,
    interval: float,
    numbers: Sequence[int],
    follows: Sequence[int] | None = None,
    dialect: Dialect = EPDMS,
) -> list[Drive]:
    """Score G plans in each of R scenes.

    Args:
        rows: R indices of scenes in the scorer.
        poses: ``[R, G, P, 3]``, NaN where malformed.
        interval: seconds between poses.
        numbers: each scene's `Drive.number`.
        follows: if the scenes are follow-ups, the number of each scene's first-stage scene.
        dialect: tells the columns.
    """
    count = poses.shape[1]
    scenes = [scorer.batch.scenes[row] for row in rows]
    scores = scorer(poses.flatten(0, 1), torch.tensor(rows).repeat_interleave(count), interval)
    shown, counted = dialect.shown(scores), dialect.counted(scores)
    displacement = average_displacement(scenes, poses, interval)
    found = []
    for row, scene in enumerate(scenes):
        part = slice(row * count, (row + 1) * count)
        pose = scene.ego.poses[-1]
        compared = bool(scene.previous or scene.follow_ups or (scene.synthetic and follows is None))
        found.append(
            Drive(
                numbers[row],
                None if follows is None else follows[row],
                scene.name,
                scene.previous,
                scene.follow_ups,
                pose[:2],
                endpoints(pose, poses[row].to(pose)),
                scores.valid[part].cpu(),
                {name: value[part].cpu() for name, value in shown.items()} | {"ade": displacement[row]},
                scores.states[part].cpu() if compared else None,
                {name: value[part].cpu() for name, value in counted.items()},
            )
        )
    return found


def average_displacement(scenes: Sequence[Scene], poses: Tensor, interval: float) -> Tensor:
    """``[S, ...]`` meters: mean distance of plans ``[S, ..., P, 3]`` to the human, every 0.5 s for 4 s.

    After its last pose, a plan stands still. NaN without a human or where a plan is NaN.
    """
    every = round(HUMAN_INTERVAL / interval)
    found = []
    for scene, plans in zip(scenes, poses[..., :2], strict=True):
        if scene.human is None:
            found.append(plans.new_full(plans.shape[:-2], torch.nan))
        else:
            at = (torch.arange(1, len(scene.human) + 1) * every - 1).clamp(max=plans.shape[-2] - 1)
            found.append((scene.human[:, :2].to(plans) - plans[..., at, :]).norm(dim=-1).mean(-1))
    return torch.stack(found)


def evaluate(
    scenes: Sequence[Scene],
    follow_ups: Sequence[Sequence[Scene]] = (),
    planners: Mapping[str, Planner] = BASELINES,
    traffic: TrafficPolicy | None = None,
    dialect: Epdms = EPDMS,
) -> dict[str, Result]:
    """Two-stage scores of each planner, by name.

    Args:
        scenes: of the first stage.
        follow_ups: second-stage scenes of each first-stage scene.
        traffic: by default reactive, as officially.
        dialect: of the scores.
    """
    traffic = Reactive() if traffic is None else traffic
    found: dict[str, list[Drive]] = {name: [] for name in planners}
    after = [(number, scene) for number, group in enumerate(follow_ups) for scene in group]
    stages = [(scenes, None), ([scene for _, scene in after], [number for number, _ in after])]
    for each, follows in stages:
        for first in range(0, len(each), SCENES_AT_ONCE):
            part = slice(first, first + SCENES_AT_ONCE)
            scorer = Scorer(each[part], traffic, human_filter=dialect.human_filter.columns)
            numbers = list(range(len(each)))[part]
            for name, driven in planned_drives(scorer, planners, numbers, follows and follows[part], dialect).items():
                found[name] += driven
    return summaries(found, dialect, traffic)


def planned_drives(
    scorer: Scorer,
    planners: Mapping[str, Planner],
    numbers: Sequence[int],
    follows: Sequence[int] | None = None,
    dialect: Dialect = EPDMS,
) -> dict[str, list[Drive]]:
    """`drives` by planner, in the scenes that it plans."""
    found = {}
    for name, planner in planners.items():
        rows, poses, interval = planner(scorer.batch.scenes, scorer.plans)
        own = None if follows is None else [follows[row] for row in rows]
        found[name] = (
            drives(scorer, rows, poses[:, None], interval, [numbers[row] for row in rows], own, dialect) if rows else []
        )
    return found
