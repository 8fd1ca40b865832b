"""DrivingTask: signals of driving answers."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from lightning_cgrpo.navsim.batch.expert_plan import ExpertPlan
from lightning_cgrpo.navsim.columns import MULTIPLIERS, WEIGHTS
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
"""Size of the cache (kilobytes each), because evaluations repeat scenes."""


@dataclass(frozen=True, eq=False)
class ScoredAnswers:
    """R readable answers of B · G."""

    answer: Tensor  # [R] int64, rows of the answers; the answers to one prompt are neighbors
    scene: Tensor  # [R] int64, rows of the prompts
    poses: Tensor  # [R, P, 3] x, y, yaw in the ego's frame, every POSE_INTERVAL
    scores: Scores | None  # None if R is 0


class DrivingTask(Task):
    """Scores trajectories as NAVSIM v2 does, with log-replay traffic and without a human filter.

    Prompts: the column ``scene``.

    Answers: waypoints as text, see `AnswerFormat.read`.

    Reward: ``wat``, the mean of the weighted terms in [0, 1], (5 EP + 5 TTC + 2 LK + 2 HC) / 14.

    Costs: the indicators ``no_at_fault_collisions``, ``drivable_area_compliance``, ``driving_direction_compliance``
    and ``traffic_light_compliance``, 1 if the sub-score is 1. The last applies to scenes with lights.

    Other signals:
        - ``ego_progress`` (a number), ``time_to_collision_within_bound``, ``lane_keeping``, ``history_comfort``: the
          terms of ``wat``
        - ``epdms``: the product of the costs' sub-scores and ``wat``
        - ``ade``: meters, mean distance to the human every 0.5 s; applies with a human and a trajectory
        - ``malformed``: no trajectory; all signals above but ``ade`` are 0
        - ``tokens`` and ``truncated``

    Args:
        answer: format of an answer, as in the prompts.
        fractional: in advantages, sub-scores of 0.5 are half a violation. Rates always count a whole violation.
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
        """Raises:
        UserError: the prompts have no column ``scene``.
        SceneError: a scene has no route.
        """
        scenes: Sequence[Scene] = prompts.column("scene", "DrivingTask")
        shape, device = rollouts.mask.shape[:2], rollouts.actions.device
        found = self.scored(scenes, texts(rollouts))
        columns = {}
        if found.scores is not None:
            driven = [scenes[row] for row in found.scene.tolist()]
            columns = {
                **found.scores.columns,
                "wat": found.scores.weighted_average,
                "epdms": found.scores.epdms,
                "ade": average_displacement(driven, found.poses, POSE_INTERVAL),
                "malformed": torch.zeros(len(found.answer)),
            }

        def values(name: str, otherwise: float = 0.0) -> Tensor:
            table = torch.full((shape.numel(),), otherwise)
            if found.scores is not None:
                valid = found.scores.valid
                table[found.answer[valid]] = columns[name][valid].float()
            return table.view(shape).to(device)

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

    def scored(self, scenes: Sequence[Scene], answers: Sequence[Sequence[str]]) -> ScoredAnswers:
        """Read and score B · G texts."""
        poses = self.answer.trajectories([text for group in answers for text in group])
        answer = (~poses[:, 0, 0].isnan()).nonzero()[:, 0]
        scene = torch.tensor([row for row, group in enumerate(answers) for _ in group], dtype=torch.int64)[answer]
        poses = poses[answer]
        if not len(answer):
            return ScoredAnswers(answer, scene, poses, None)
        asked, rows = scene.unique(return_inverse=True)
        used = [scenes[row] for row in asked.tolist()]
        scorer = Scorer(used, plans=self.plans(used), human_filter=False)
        return ScoredAnswers(answer, scene, poses, scorer(poses, rows, POSE_INTERVAL))

    def plans(self, scenes: Sequence[Scene]) -> list[ExpertPlan]:
        keys = [_fingerprint(scene) for scene in scenes]
        new = {key: scene for key, scene in zip(keys, scenes, strict=True) if key not in self._plans}
        self._plans.update(zip(new, plan(list(new.values())), strict=True))
        plans = [self._plans[key] for key in keys]
        for key in keys:
            self._plans.move_to_end(key)
        while len(self._plans) > PLANS_KEPT:
            self._plans.popitem(last=False)
        return plans


def _fingerprint(scene: Scene) -> bytes:
    """Hash of a scene's content, because sources rebuild scenes."""
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
