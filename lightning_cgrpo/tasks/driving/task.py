"""Signals of driving. NAVSIM.md 5."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from lightning_cgrpo.navsim.aggregation import MULTIPLIERS, WEIGHTS
from lightning_cgrpo.navsim.batch.expert_plan import ExpertPlan
from lightning_cgrpo.navsim.evaluation import average_displacement
from lightning_cgrpo.navsim.expert.pdm_closed import plan
from lightning_cgrpo.navsim.scorer import Scorer, Scores
from lightning_cgrpo.objective.objective import SignalKind
from lightning_cgrpo.rollout import PromptGroups, Rollouts, Signal
from lightning_cgrpo.scenes.scene import Scene
from lightning_cgrpo.tasks.completions import length_signals, texts
from lightning_cgrpo.tasks.driving.answers import POSE_INTERVAL, AnswerFormat
from lightning_cgrpo.tasks.task import Task

PROGRESS, LIGHTS = "ego_progress", "traffic_light_compliance"
PLANS_KEPT = 16_384
"""The expert's plans of so many scenes are kept, some kilobytes each: the scenes of an evaluation come again."""


@dataclass(frozen=True, eq=False)
class Drives:
    """The answers that can be read, R of B · G.

    Args:
        answer: ``[R]`` int64, rows of the answers, those to one prompt being neighbors.
        scene: ``[R]`` int64, rows of the prompts.
        poses: ``[R, P, 3]`` x, y, yaw in the ego's frame, every `POSE_INTERVAL`.
        scores: theirs; None where R is 0.
    """

    answer: Tensor
    scene: Tensor
    poses: Tensor
    scores: Scores | None


class DrivingTask(Task):
    """Scores trajectories that were written as text, as NAVSIM v2 does with log-replay traffic and no human filter.

    Prompts have the column ``scene``. Signals are

    - ``wat``, the reward: the mean of the weighted terms, (5 EP + 5 TTC + 2 LK + 2 HC) / 14, in [0, 1]
    - ``no_at_fault_collisions``, ``drivable_area_compliance``, ``driving_direction_compliance`` and
      ``traffic_light_compliance``, indicators of what is to be constrained: 1 if the sub-score is 1, so that 0.5 is a
      violation too. The last one applies in scenes that have lights
    - ``ego_progress``, a number, and the indicators ``time_to_collision_within_bound``, ``lane_keeping`` and
      ``history_comfort``: the terms of ``wat``
    - ``epdms``, the product of all of that
    - ``ade``, meters: the mean distance to where the human was, every 0.5 s; where there is a human and a trajectory
    - ``malformed``, indicator: the answer is no trajectory, see `AnswerFormat.read`. All the others but ``ade`` are 0
    - ``tokens`` and ``truncated``, as in every task about text

    Args:
        answer: what an answer is; the same that the prompts ask for.
        fractional: in the advantages, a sub-score of 0.5 (hitting a cone, a bit of oncoming lane) is half a violation.
            Rates count it as a whole one in any case.
    """

    signals: Mapping[str, SignalKind] = {
        "wat": "number",
        **dict.fromkeys(MULTIPLIERS, "indicator"),
        **{name: "number" if name == PROGRESS else "indicator" for name in WEIGHTS},
        "epdms": "number",
        "ade": "number",
        "malformed": "indicator",
        "tokens": "number",
        "truncated": "indicator",
    }

    def __init__(self, answer: AnswerFormat = AnswerFormat(), fractional: bool = False) -> None:  # noqa: B008 (frozen)
        self.answer, self.fractional = answer, fractional
        self._plans: OrderedDict[bytes, ExpertPlan] = OrderedDict()

    def score(self, prompts: PromptGroups, rollouts: Rollouts) -> dict[str, Signal]:
        """Signals ``[B, G]``, float32.

        Raises:
            UserError: the prompts have no column ``scene``.
            SceneError: a scene has no route to be driven.
        """
        scenes: Sequence[Scene] = prompts.column("scene", "DrivingTask")
        shape, device = rollouts.mask.shape[:2], rollouts.actions.device
        drives = self.drives(scenes, texts(rollouts))

        columns = _columns(scenes, drives)

        def values(name: str, otherwise: float = 0.0) -> Tensor:
            """``[B, G]`` of a column, in which all that can't be scored is otherwise."""
            found = torch.full((shape.numel(),), otherwise)
            if drives.scores is not None:
                valid = drives.scores.valid
                found[drives.answer[valid]] = columns[name][valid].float()
            return found.view(shape).to(device)

        signals = {name: Signal(values(name)) for name in ("wat", *WEIGHTS, "epdms")}
        for name in MULTIPLIERS:
            value = values(name)
            kept = (value == 1).float()
            signals[name] = Signal(value, count=kept) if self.fractional else Signal(kept)
        lit = torch.tensor([bool((scene.lights.red | scene.lights.green).any()) for scene in scenes], dtype=torch.bool)
        signals[LIGHTS].applicable = lit[:, None].expand(shape).to(device)
        ade = values("ade", torch.nan)
        return {
            **signals,
            "ade": Signal(ade.nan_to_num(0.0), applicable=ade.isfinite()),
            "malformed": Signal(values("malformed", 1.0)),
            **length_signals(rollouts, None),
        }

    def drives(self, scenes: Sequence[Scene], answers: Sequence[Sequence[str]]) -> Drives:
        """The trajectories that are written in answers, scored.

        Args:
            scenes: B.
            answers: B times G texts.
        """
        read = [(row, self.answer.read(text)) for row, group in enumerate(answers) for text in group]
        found = [(number, row, points) for number, (row, points) in enumerate(read) if points is not None]
        answer, scene = (torch.tensor([each[part] for each in found], dtype=torch.int64) for part in (0, 1))
        if not found:
            return Drives(answer, scene, torch.zeros(0, 1, 3, dtype=torch.float64), None)
        poses = self.answer.poses(torch.stack([points for _, _, points in found]))
        asked, rows = scene.unique(return_inverse=True)
        used = [scenes[row] for row in asked.tolist()]
        scorer = Scorer(used, plans=self.plans(used), human_filter=False)
        return Drives(answer, scene, poses, scorer(poses, rows, POSE_INTERVAL))

    def plans(self, scenes: Sequence[Scene]) -> list[ExpertPlan]:
        """PDM-Closed's, kept for when the scenes come again."""
        keys = [_fingerprint(scene) for scene in scenes]
        new = {key: scene for key, scene in zip(keys, scenes, strict=True) if key not in self._plans}
        self._plans.update(zip(new, plan(list(new.values())), strict=True))
        plans = [self._plans[key] for key in keys]
        for key in keys:
            self._plans.move_to_end(key)
        while len(self._plans) > PLANS_KEPT:
            self._plans.popitem(last=False)
        return plans


def _columns(scenes: Sequence[Scene], drives: Drives) -> dict[str, Tensor]:
    """``[R]`` each, of the answers that can be read."""
    if drives.scores is None:
        return {}
    driven = [scenes[row] for row in drives.scene.tolist()]
    return {
        **drives.scores.columns,
        "wat": drives.scores.weighted_average,
        "epdms": drives.scores.epdms,
        "ade": average_displacement(driven, drives.poses, POSE_INTERVAL),
        "malformed": torch.zeros(len(drives.answer)),
    }


def _fingerprint(scene: Scene) -> bytes:
    """Of everything that a scene says. Sources build a scene anew each time."""
    found = hashlib.blake2b(digest_size=16)

    def add(value: Any) -> None:
        if isinstance(value, Tensor):
            found.update(repr(value.shape).encode())
            found.update(value.contiguous().numpy().tobytes())
        elif is_dataclass(value):
            for part in fields(value):
                add(getattr(value, part.name))
        else:
            found.update(repr(value).encode(errors="surrogatepass"))

    add(scene)
    return found.digest()
