"""DrivingTask: signals of driving answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from driving_scenes.scene import Scene
from lightning_cgrpo.core.rollout import PromptGroups, Rollouts, Signal
from lightning_cgrpo.objective.signals import SignalKind
from lightning_cgrpo.tasks.completions import length_signals, texts
from lightning_cgrpo.tasks.driving.answers import POSE_INTERVAL, AnswerFormat
from lightning_cgrpo.tasks.task import Task
from navsim_score.batch.scene_batch import ExpertPlan
from navsim_score.columns import EXTENDED_COMFORT, MULTIPLIERS, WEIGHTS
from navsim_score.evaluation import average_displacement
from navsim_score.scorer import Scorer, Scores
from navsim_score.scoring.comfort import extended_comfort
from navsim_score.scoring.motion import take
from navsim_score.traffic.log_replay import LogReplay
from navsim_score.traffic.traffic import TrafficPolicy

PROGRESS, LIGHTS = "ego_progress", "traffic_light_compliance"


@dataclass(frozen=True, eq=False)
class ScoredAnswers:
    """The G answers to a prompt, in the task's traffic."""

    poses: Tensor  # [G, P, 3] x, y, yaw in the ego's frame, every POSE_INTERVAL; NaN where malformed
    scores: Scores  # of G rows


class DrivingTask(Task):
    """Scores trajectories as NAVSIM v2 does; by default with log-replay traffic and without a human filter.

    Prompts: the column ``scene``, and the expert's ``plan``; without a plan the task plans.

    Answers: waypoints as text, see `AnswerFormat.read`.

    Reward: ``wat``, the mean of the weighted terms in [0, 1], (5 EP + 5 TTC + 2 LK + 2 HC) / 14.

    Costs: the indicators ``no_at_fault_collisions``, ``drivable_area_compliance``, ``driving_direction_compliance``
    and ``traffic_light_compliance``, 1 if the sub-score is 1. The last applies to scenes with lights.

    Other signals:
        - ``ego_progress`` (a number), ``time_to_collision_within_bound``, ``lane_keeping``, ``history_comfort``: the
          terms of ``wat``
        - ``epdms``: the product of the costs' sub-scores and ``wat``
        - ``two_frame_extended_comfort``: the drive agrees with that of the same number in the frame 0.5 s before or
          after; applies if the batch has both frames, see `frame_pairs` of `NavsimDataModule`
        - ``ade``: meters, mean distance to the human every 0.5 s; applies with a human and a trajectory
        - ``malformed``: no trajectory; all signals above but ``ade`` are 0
        - ``tokens`` and ``truncated``

    Args:
        answer: format of an answer, as in the prompts.
        fractional: in advantages, sub-scores of 0.5 are half a violation. Rates always count a whole violation.
        traffic: behavior of agents, by default log replay; `Reactive` is official, and slower.
        human_filter: ignore violations that the human also commits, in original scenes; official.
    """

    signals: Mapping[str, SignalKind] = {
        "wat": "number",
        **dict.fromkeys(MULTIPLIERS, "indicator"),
        **{name: "number" if name == PROGRESS else "indicator" for name in WEIGHTS},
        "epdms": "number",
        EXTENDED_COMFORT: "indicator",
        "ade": "number",
        "malformed": "indicator",
        "tokens": "number",
        "truncated": "indicator",
    }

    def __init__(
        self,
        answer: AnswerFormat = AnswerFormat(),  # noqa: B008 (frozen)
        fractional: bool = False,
        traffic: TrafficPolicy | None = None,
        human_filter: bool = False,
    ) -> None:
        self.answer = answer
        self.fractional = fractional
        self.traffic = LogReplay() if traffic is None else traffic
        self.human_filter = human_filter

    def score(self, prompts: PromptGroups, rollouts: Rollouts) -> dict[str, Signal]:
        """Score answers; ``info["drives"]`` of the rollouts then has the `ScoredAnswers` of each prompt, for callbacks.

        Raises:
        UserError: the prompts have no column ``scene``.
        SceneError: a scene has no route.
        """
        scenes: Sequence[Scene] = prompts.column("scene", "DrivingTask")
        if "plan" not in prompts.columns and scenes and not any(scene.map.lanes.ids for scene in scenes):
            return self._read_alone(scenes, rollouts)
        shape = rollouts.mask.shape[:2]
        device = rollouts.actions.device
        # 1. Score the answers.
        drives = self.scored(scenes, self.answers(rollouts), prompts.columns.get("plan"))
        rollouts.info["drives"] = drives
        # 2. A table of values [names, B G], in which malformed answers have zeros.
        names = ("wat", *WEIGHTS, "epdms", *MULTIPLIERS, "ade", "malformed")
        malformed = torch.zeros(len(names))
        malformed[names.index("ade")] = torch.nan
        malformed[names.index("malformed")] = 1.0
        table = malformed[:, None].repeat(1, shape.numel())
        if drives:
            scores = Scores.cat([drive.scores for drive in drives])
            poses = torch.stack([drive.poses for drive in drives])
            columns = {
                **scores.columns,
                "wat": scores.weighted_average,
                "epdms": scores.epdms,
                "ade": average_displacement(scenes, poses, POSE_INTERVAL).flatten(),
                "malformed": torch.zeros(shape.numel()),
            }
            table = torch.where(scores.valid, torch.stack([columns[name].float() for name in names]), table)
        has_lights = [bool((scene.lights.red | scene.lights.green).any()) for scene in scenes]
        lit = torch.tensor(has_lights, dtype=torch.bool)
        # 3. A single copy to the device, because the host waits for each copy.
        rows = torch.cat([table.view(len(names), *shape), lit[None, :, None].expand(1, *shape)]).to(device)
        values = dict(zip((*names, "lit"), rows, strict=True))
        # 4. The signals.
        signals = {name: Signal(values[name]) for name in ("wat", *WEIGHTS, "epdms")}
        for name in MULTIPLIERS:
            is_kept = (values[name] == 1).float()
            if self.fractional:
                signals[name] = Signal(values[name], count=is_kept)
            else:
                signals[name] = Signal(is_kept)
        signals[LIGHTS].applicable = values["lit"].bool()
        ade = values["ade"]
        comfort = _extended_comfort(scenes if drives else (), drives, shape, prompts.sample)
        return {
            **signals,
            EXTENDED_COMFORT: comfort.to(device),
            "ade": Signal(ade.nan_to_num(0.0), applicable=ade.isfinite()),
            "malformed": Signal(values["malformed"]),
            **self._lengths(rollouts),
        }

    def answers(self, rollouts: Rollouts) -> Sequence[Any]:
        """G answers to each of B prompts, as `_read` takes them: texts."""
        return texts(rollouts)

    def plans(self, scenes: Sequence[Scene], rollouts: Rollouts) -> Tensor:
        """Poses ``[B, G, P, 3]`` of the answers, NaN where malformed."""
        return self._read(scenes, self.answers(rollouts)).unflatten(0, rollouts.mask.shape[:2])

    def _lengths(self, rollouts: Rollouts) -> dict[str, Signal]:
        return length_signals(rollouts, None)

    def _read(self, scenes: Sequence[Scene], answers: Sequence[Any]) -> Tensor:
        """``[B G, P, 3]`` poses of G texts in each of B scenes."""
        all_texts: list[str] = []
        scene_of_text: list[Scene] = []
        for scene, group in zip(scenes, answers, strict=True):
            all_texts += group
            scene_of_text += [scene] * len(group)
        return self.answer.trajectories(all_texts, scene_of_text)

    def _read_alone(self, scenes: Sequence[Scene], rollouts: Rollouts) -> dict[str, Signal]:
        """Signals of answers to predicted scenes without a map: scores don't apply."""
        malformed = self.plans(scenes, rollouts)[:, :, 0, 0].isnan().float().to(rollouts.actions.device)
        unknown = Signal(torch.zeros_like(malformed), applicable=torch.zeros_like(malformed, dtype=torch.bool))
        signals = dict.fromkeys(self.signals, unknown)
        return {**signals, "malformed": Signal(malformed), **self._lengths(rollouts)}

    def scored(
        self, scenes: Sequence[Scene], answers: Sequence[Any], plans: Sequence[ExpertPlan] | None = None
    ) -> list[ScoredAnswers]:
        """Read and score G texts in each of B scenes, in which the expert plans without `plans`.

        A scene is prepared if any of its answers is a plan, so a scene without a route may have malformed answers. None
        are scored if no scene has a plan or a route.
        """
        if not scenes:
            return []
        poses = self._read(scenes, answers)  # [B G, P, 3]
        group_size = len(answers[0])
        # 1. The scenes to prepare: those with a trajectory, or else one with a route.
        has_trajectory = (~poses[:, 0, 0].isnan()).view(len(scenes), group_size).any(1)
        used = [number for number, any_plan in enumerate(has_trajectory.tolist()) if any_plan]
        if not used:
            used = [number for number, scene in enumerate(scenes) if scene.route][:1]
        if not used:
            return []
        used_plans = None
        if plans is not None:
            used_plans = [plans[number] for number in used]
        scorer = Scorer(
            [scenes[number] for number in used],
            self.traffic,
            plans=used_plans,
            human_filter=self.human_filter,
        )
        # 2. Score each answer in its scene. Scenes that were not prepared have malformed answers alone, which get no
        # score in any scene, so the first prepared one stands for them.
        row = torch.zeros(len(scenes), dtype=torch.int64)
        row[used] = torch.arange(len(used))
        scores = scorer(poses, row.repeat_interleave(group_size), POSE_INTERVAL)
        # 3. Split the scores by prompt.
        scored = []
        for start in range(0, len(poses), group_size):
            group = slice(start, start + group_size)
            scored.append(ScoredAnswers(poses[group], take(scores, group)))
        return scored


def _extended_comfort(
    scenes: Sequence[Scene], drives: Sequence[ScoredAnswers], shape: Sequence[int], sample: Tensor | None
) -> Signal:
    """EC of both frames of each pair; malformed answers disagree.

    Args:
        sample: of the prompts, which then says the pairs; else the scenes' names do.
    """
    value = torch.zeros(*shape)
    applicable = torch.zeros(*shape, dtype=torch.bool)
    rows = {scene.name: row for row, scene in enumerate(scenes)}
    firsts = None if sample is None else sample.tolist()
    for now in range(len(scenes)):
        before = _previous_frame(now, scenes, rows, firsts)
        if before is not None:
            pair = [now, before]
            value[pair] = extended_comfort(drives[now].scores.states, drives[before].scores.states).float()
            applicable[pair] = True
    return Signal(value, applicable=applicable)


def _previous_frame(
    row: int, scenes: Sequence[Scene], rows: Mapping[str, int], firsts: Sequence[int] | None
) -> int | None:
    """The row with the frame before a scene; None if it is not in the batch.

    Args:
        rows: by the scenes' names.
        firsts: the first row of each row's pair, if the prompts say the pairs.
    """
    previous = scenes[row].previous
    if previous is None or previous not in rows:
        return None
    if firsts is None:
        return rows[previous]
    # A frame may stand in the batch twice: as the next of one scene, and with its own next.
    first = firsts[row]
    return first if scenes[first].name == previous else None
