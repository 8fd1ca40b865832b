"""Prompts of scenes and follow-ups, and demonstrations."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from driving_scenes.scene import Scene
from driving_scenes.source import Scenes, WithoutEnd
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.prompts.source import PromptSource
from lightning_cgrpo.core.rollout import PromptGroups
from lightning_cgrpo.run.fingerprints import file_fingerprint
from lightning_cgrpo.tasks.driving.prompts import PromptFormat, messages
from lightning_cgrpo.tasks.driving.thoughts import Thoughts, thought_first
from navsim_score.batch.scene_batch import ExpertPlan, overridden
from navsim_score.evaluation import human, pdm_closed
from navsim_score.expert.pdm_closed import plan

SCENES_KEPT = 512
"""Scenes in the cache, because evaluations repeat scenes."""
Messages = list[dict[str, Any]]


class _Row(NamedTuple):
    scene: Scene
    prompt: Messages
    plan: ExpertPlan | None


@dataclass(eq=False)
class ScenePrompts(PromptSource):
    """Prompts of scenes, with the columns ``prompt``, ``scene`` and ``plan``, the expert's; a log is a cluster.

    Args:
        scenes: built when they are indexed.
        count: most scenes, evenly spaced; None for all.

    Attributes:
        kept: size of the cache of scenes.
        planned: with the column ``plan``, which `DrivingTask` needs.
    """

    scenes: Sequence[Scene]
    count: int | None
    form: PromptFormat
    kept = SCENES_KEPT
    planned = True

    def __post_init__(self) -> None:
        if not len(self.scenes):
            raise UserError("Expected scenes in every split that is used, but got none, try another share of the logs.")
        self.endless = isinstance(self.scenes, Scenes) and isinstance(self.scenes.keys, WithoutEnd)
        self._rows: OrderedDict[int, _Row] = OrderedDict()

    def __len__(self) -> int:
        if self.count is None:
            return len(self.scenes)
        return min(self.count, len(self.scenes))

    @property
    def names(self) -> list[str] | None:  # type: ignore[override]
        """Tokens of the scenes, or fingerprints of their files; None for generated scenes, which settings tell."""
        keys = self.scenes.keys if isinstance(self.scenes, Scenes) else range(0)
        if self.endless or isinstance(keys, range):
            return None
        names = []
        for number in range(len(self)):
            key = keys[self.place(number)]
            names.append(file_fingerprint(key) if isinstance(key, Path) else repr(key))
        return names

    def groups(self, index: Tensor) -> PromptGroups:
        numbers = index.tolist()
        # 1. Build the prompts that are not in the cache.
        new = [number for number in dict.fromkeys(numbers) if number not in self._rows]
        built = self._build_rows([self.scene(number) for number in new])
        self._rows.update(zip(new, built, strict=True))
        rows = [self._rows[number] for number in numbers]
        # 2. Forget the prompts that were not asked for the longest.
        for number in numbers:
            self._rows.move_to_end(number)
        while len(self._rows) > self.kept:
            self._rows.popitem(last=False)
        return self._prompt_groups(index, rows)

    def scene(self, number: int) -> Scene:
        """The scene of a prompt, without images and plan."""
        return self.scenes[self.place(number)]

    def place(self, number: int) -> int:
        """The index of a prompt's scene; new prompts have scenes after those that splits are spaced over."""
        if self.endless and number >= len(self):
            return len(self.scenes) + number
        return number * len(self.scenes) // len(self)

    def _prompt_groups(self, index: Tensor, rows: Sequence[_Row]) -> PromptGroups:
        columns: dict[str, Any] = {"prompt": [row.prompt for row in rows], "scene": [row.scene for row in rows]}
        if self.planned:
            columns["plan"] = [row.plan for row in rows]
        clusters = [row.scene.log or row.scene.name for row in rows]
        return PromptGroups(index, columns, clusters=clusters)

    def _build_rows(self, scenes: Sequence[Scene]) -> list[_Row]:
        plans: Sequence[ExpertPlan | None] = [None] * len(scenes)
        if self.planned:
            plans = plan(scenes)
        rows = []
        for scene, expert_plan in zip(scenes, plans, strict=True):
            rows.append(_Row(scene, messages(scene, self.form), expert_plan))
        return rows


@dataclass(eq=False)
class MixedPrompts(ScenePrompts):
    """Prompts of scenes, some of which are follow-ups, and pairs of frames.

    Args:
        follow_ups: of each scene.
        share: of the prompts that show a follow-up instead of its scene, evenly spaced; scenes without follow-ups stay.
        next_frames: the frame 0.5 s after each scene. The second half of a batch shows the next frames of the first
            half's scenes, so that extended comfort applies. A scene whose next frame is unknown is shown again.
    """

    follow_ups: Sequence[Sequence[Scene]] = ()
    share: float = 0.0
    next_frames: Sequence[Scene | None] | None = None

    def groups(self, index: Tensor) -> PromptGroups:
        if self.next_frames is None:
            return super().groups(index)
        numbers = index.tolist()
        pairs = len(numbers) // 2
        scenes = [self.scene(number) for number in numbers[: len(numbers) - pairs]]
        for row, number in enumerate(numbers[:pairs]):
            scenes.append(self.next_frames[self.place(number)] or scenes[row])
        groups = self._prompt_groups(index, self._build_rows(scenes))
        groups.sample = torch.cat([torch.arange(len(numbers) - pairs), torch.arange(pairs)])
        return groups

    def scene(self, number: int) -> Scene:
        shows_follow_up = int((number + 1) * self.share) > int(number * self.share)
        if shows_follow_up:
            group = self.follow_ups[self.place(number)]
            if len(group):
                return group[number % len(group)]
        return super().scene(number)


class FollowUpPrompts(ScenePrompts):
    """Prompts of follow-ups; the column ``follows`` is the index of the first-stage prompt."""

    def __init__(self, groups: Sequence[Sequence[Scene]], form: PromptFormat) -> None:
        keys: list[tuple[Sequence[Scene], int]] = []
        self.follows: list[int] = []
        for number, group in enumerate(groups):
            for place in range(len(group)):
                keys.append((group, place))
                self.follows.append(number)
        super().__init__(Scenes(keys, lambda key: key[0][key[1]]), None, form)

    def groups(self, index: Tensor) -> PromptGroups:
        groups = super().groups(index)
        groups.columns["follows"] = [self.follows[number] for number in index.tolist()]
        return groups


@dataclass(eq=False)
class DrivingDemonstrations(ScenePrompts):
    """Prompts of scenes with the column ``completion`` instead of ``plan``, see `NavsimDemonstrationsDataModule`."""

    human: bool = False
    thoughts: Thoughts | None = None
    kept = 0  # each is shown once in a pass
    planned = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._answers: dict[int, str] = {}

    def groups(self, index: Tensor) -> PromptGroups:
        """Raises:
        UserError: a demonstration is too short, a scene has no human, or thoughts have brackets.
        """
        groups = super().groups(index)
        scenes = dict(zip(index.tolist(), groups.columns["scene"], strict=True))
        new = {number: scene for number, scene in scenes.items() if number not in self._answers}
        for number, trajectory in zip(new, self._write_trajectories(list(new.values())), strict=True):
            self._answers[number] = self._with_thoughts(new[number], trajectory)
        groups.columns["completion"] = [self._answers[number] for number in index.tolist()]
        return groups

    def _write_trajectories(self, scenes: Sequence[Scene]) -> list[str]:
        """The trajectories of the human, or of the expert, as answers."""
        missing = [scene.name for scene in scenes if self.human and scene.human is None]
        if missing:
            raise UserError(f"Expected a human to demonstrate, but scene '{missing[0]}' has none, try human=false.")
        if not scenes:
            return []
        if self.human:
            _, poses, interval = human(scenes, ())
        else:
            _, poses, interval = pdm_closed(scenes, overridden(plan(scenes), scenes))
        return [self.form.answer.write(trajectory, interval) for trajectory in poses]

    def _with_thoughts(self, scene: Scene, trajectory: str) -> str:
        if self.thoughts is None:
            return trajectory
        answer = thought_first(self.thoughts(scene), trajectory)
        if self.form.answer.read(answer) is None:
            raise UserError(f"Expected thoughts without brackets, but got '{answer[:80]}' of scene '{scene.name}'.")
        return answer
