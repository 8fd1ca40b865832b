"""How well somebody drives, in the columns of the paper's table: the first stage, the second, and both together.

The official protocol of navhard (NAVSIM.md 1.9): follow-up scenes count the more the nearer they start to where the
plan of the first stage ends, and a score is the product of both stages' EPDMS.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from lightning_cgrpo.navsim.aggregation import EXTENDED_COMFORT, Group, endpoints, epdms, follow_up_weights
from lightning_cgrpo.navsim.baselines import HUMAN_INTERVAL, REFERENCES, Planner
from lightning_cgrpo.navsim.scorer import COLUMNS, Scorer
from lightning_cgrpo.navsim.scoring.comfort import extended_comfort
from lightning_cgrpo.navsim.traffic.reactive import Reactive
from lightning_cgrpo.navsim.traffic.traffic import TrafficPolicy
from lightning_cgrpo.scenes.scene import Scene

SHORT = dict(zip(("NC", "DAC", "DDC", "TLC", "EP", "TTC", "LK", "HC"), COLUMNS, strict=True)) | {
    "EC": EXTENDED_COMFORT,
    "EPDMS": "epdms",
    "ADE@4s": "ade",
}
"""Columns by the paper's names."""
SCENES_AT_ONCE = 32


@dataclass(frozen=True, eq=False)
class Drive:
    """What became of G plans for a scene.

    Args:
        number: of the scene, by which others follow it.
        follows: the number of the scene of the first stage; None if this is one, or its name is among `follow_ups` of
            one.
        name: of the scene.
        previous: name of the scene 0.5 s before.
        follow_ups: names of scenes of the second stage.
        start: ``[2]`` where the ego begins.
        ends: ``[G, 2]`` where plans end, NaN where a plan is malformed.
        valid: ``[G]`` bool, False where it is.
        columns: ``[G]`` each, by official name, and ``ade``; NaN where there is none.
        states: ``[G, 41, 11]`` simulated, where the scene before is known by name, or this may be one.
    """

    number: int
    follows: int | None
    name: str
    previous: str | None
    follow_ups: tuple[str, ...]
    start: Tensor
    ends: Tensor
    valid: Tensor
    columns: Mapping[str, Tensor]
    states: Tensor | None


def drives(
    scorer: Scorer,
    rows: Sequence[int],
    poses: Tensor,
    interval: float,
    numbers: Sequence[int],
    follows: Sequence[int] | None = None,
) -> list[Drive]:
    """Drive plans.

    Args:
        scorer: of scenes; officially with reactive traffic.
        rows: R of its scenes.
        poses: ``[R, G, P, 3]`` plans for them; NaN where malformed.
        interval: seconds between poses.
        numbers: R, of the scenes.
        follows: R numbers of the scenes that these follow, if they do.
    """
    count = poses.shape[1]
    scenes = [scorer.batch.scenes[row] for row in rows]
    scores = scorer(poses.flatten(0, 1), torch.tensor(rows).repeat_interleave(count), interval)
    displacement = average_displacement(scenes, poses, interval)
    found = []
    for row, scene in enumerate(scenes):
        part = slice(row * count, (row + 1) * count)
        pose = scene.ego.poses[-1]
        kept = bool(scene.previous or scene.follow_ups or (scene.synthetic and follows is None))
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
                {name: value[part].cpu() for name, value in scores.columns.items()} | {"ade": displacement[row]},
                scores.states[part].cpu() if kept else None,
            )
        )
    return found


def average_displacement(scenes: Sequence[Scene], poses: Tensor, interval: float) -> Tensor:
    """``[S, ...]`` meters: the mean distance of plans ``[S, ..., P, 3]`` to where the human was, every 0.5 s for 4 s.

    As when it is driven, a plan stands after its last pose. NaN where there is no human, or no plan.
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


@dataclass(frozen=True)
class Stage:
    """Means over a stage, malformed answers as 0 (in ADE they don't count).

    Args:
        scenes: how many there are.
        answers: to all of them.
        malformed: the share of these that is malformed.
        columns: by the names of `SHORT`; None where nobody has one.
    """

    scenes: int
    answers: int
    malformed: float
    columns: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """Of one who drives.

    Args:
        first: the first stage.
        second: the second, if there are follow-ups: the mean over the first stage's answers of what follows each,
            weighted by how near it starts to where that ends.
        scenes: of the first stage, with follow-ups.
        epdms: the mean over their answers of the product of both stages.
    """

    first: Stage
    second: Stage | None = None
    scenes: int = 0
    epdms: float | None = None


def summary(found: Sequence[Drive]) -> Result:
    """The means of both stages. The answers to a follow-up are alike for all answers to the scene that it follows."""
    ordered = _linked(sorted(found, key=lambda drive: (drive.follows is not None, drive.number)))
    values = _values(ordered)
    first = [row for row, drive in enumerate(ordered) if drive.follows is None]
    after: dict[int, list[int]] = {}
    for row, drive in enumerate(ordered):
        if drive.follows is not None:
            after.setdefault(drive.follows, []).append(row)
    one = _stage([ordered[row] for row in first], [values[row] for row in first])
    groups: list[Group] = []
    used: set[int] = set()
    scenes = 0
    for row in first:
        rows = after.get(ordered[row].number, [])
        if not rows:
            continue
        scenes += 1
        used.update(rows)
        starts = torch.stack([ordered[each].start for each in rows])
        means = torch.stack([values[each].mean(0) for each in rows])
        weights = follow_up_weights(ordered[row].ends, starts)
        groups += [Group(own, means, weight) for own, weight in zip(values[row], weights, strict=True)]
    if not groups:
        return Result(one)
    second = torch.stack([group.second for group in groups])
    score = list(SHORT.values()).index("epdms")
    product = torch.stack([group.first[score] for group in groups]) * second[:, score]
    two = _stage([ordered[row] for row in sorted(used)], [second])
    return Result(one, two, scenes, float(product.mean()))


def _linked(found: Sequence[Drive]) -> list[Drive]:
    """With the numbers of scenes that others name as their follow-ups' first scene."""
    origin = {name: drive.number for drive in found if drive.follows is None for name in drive.follow_ups}
    return [
        replace(drive, follows=origin[drive.name]) if drive.follows is None and drive.name in origin else drive
        for drive in found
    ]


def _values(found: Sequence[Drive]) -> list[Tensor]:
    """``[G, C]`` of each, in the columns of `SHORT`; NaN where a column isn't known, 0 where a plan is malformed."""
    by_name = {drive.name: row for row, drive in enumerate(found)}
    comfort = [torch.full(drive.valid.shape, torch.nan, dtype=torch.float64) for drive in found]
    for row, drive in enumerate(found):
        before = by_name.get(drive.previous) if drive.previous is not None else None
        earlier = None if before is None else found[before].states
        if before is not None and earlier is not None and drive.states is not None:
            # It holds for both frames.
            comfort[row] = comfort[before] = extended_comfort(drive.states, earlier).double()
    values = []
    for drive, known in zip(found, comfort, strict=True):
        columns = {**drive.columns, EXTENDED_COMFORT: known}
        columns["epdms"] = epdms(columns)
        table = torch.stack([columns[name].double() for name in SHORT.values()], 1)
        malformed = torch.zeros_like(table)
        malformed[:, -1] = torch.nan  # nobody knows how far it is from the human
        malformed[:, list(SHORT).index("EC")] = torch.where(known.isnan(), torch.nan, 0.0)
        values.append(torch.where(drive.valid[:, None], table, malformed))
    return values


def _stage(of: Sequence[Drive], values: Sequence[Tensor]) -> Stage:
    valid = torch.cat([drive.valid for drive in of]) if of else torch.zeros(0, dtype=torch.bool)
    means = torch.cat(list(values)).nanmean(0).tolist() if values else [torch.nan] * len(SHORT)
    columns = {name: None if mean != mean else mean for name, mean in zip(SHORT, means, strict=True)}
    return Stage(len(of), len(valid), float((~valid).double().mean()) if len(valid) else 0.0, columns)


def evaluate(
    scenes: Sequence[Scene],
    follow_ups: Sequence[Sequence[Scene]] = (),
    planners: Mapping[str, Planner] = REFERENCES,
    traffic: TrafficPolicy | None = None,
    human_filter: bool = True,
) -> dict[str, Result]:
    """How planners do, by their names.

    Args:
        scenes: of the first stage.
        follow_ups: of each of them those of the second stage, if there are any.
        planners: by name.
        traffic: how the others behave; by default reactively, as officially.
        human_filter: see `Scorer`.
    """
    traffic = Reactive() if traffic is None else traffic
    found: dict[str, list[Drive]] = {name: [] for name in planners}
    after = [(number, scene) for number, group in enumerate(follow_ups) for scene in group]
    stages = [(scenes, None), ([scene for _, scene in after], [number for number, _ in after])]
    for each, follows in stages:
        for first in range(0, len(each), SCENES_AT_ONCE):
            part = slice(first, first + SCENES_AT_ONCE)
            scorer = Scorer(each[part], traffic, human_filter=human_filter)
            numbers = list(range(len(each)))[part]
            for name, driven in planned_drives(scorer, planners, numbers, follows and follows[part]).items():
                found[name] += driven
    return {name: summary(driven) for name, driven in found.items()}


def planned_drives(
    scorer: Scorer, planners: Mapping[str, Planner], numbers: Sequence[int], follows: Sequence[int] | None = None
) -> dict[str, list[Drive]]:
    """The drives of planners in all scenes of a scorer; see `drives`."""
    found = {}
    for name, planner in planners.items():
        rows, poses, interval = planner(scorer.batch.scenes, scorer.plans)
        own = None if follows is None else [follows[row] for row in rows]
        found[name] = (
            drives(scorer, rows, poses[:, None], interval, [numbers[row] for row in rows], own) if rows else []
        )
    return found


def as_json(result: Result) -> dict[str, Any]:
    """What `json` can write. Numbers that aren't known are None."""

    def stage(of: Stage) -> dict[str, Any]:
        return {"scenes": of.scenes, "answers": of.answers, "malformed": of.malformed, **of.columns}

    second = None if result.second is None else stage(result.second)
    both = {"scenes": result.scenes, "EPDMS": result.epdms}
    return {"stage_one": stage(result.first), "stage_two": second, "both": both if second else None}
