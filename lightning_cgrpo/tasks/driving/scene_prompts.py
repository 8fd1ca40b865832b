"""Prompts of scenes and follow-ups, and demonstrations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from torch import Tensor

from lightning_cgrpo.errors import UserError
from lightning_cgrpo.navsim.baselines import HUMAN_INTERVAL
from lightning_cgrpo.navsim.expert.pdm_closed import plan
from lightning_cgrpo.navsim.simulation.interpolation import in_ego
from lightning_cgrpo.navsim.simulation.timing import DT
from lightning_cgrpo.prompt_source import PromptSource
from lightning_cgrpo.rollout import PromptGroups
from lightning_cgrpo.scenes.scene import Scene
from lightning_cgrpo.scenes.source import Scenes
from lightning_cgrpo.tasks.driving.prompts import PromptFormat, messages
from lightning_cgrpo.tasks.driving.thoughts import Thoughts, thought_first

SCENES_KEPT = 512
"""Scenes in the cache, because evaluations repeat scenes."""
Messages = list[dict[str, Any]]


class ScenePrompts(PromptSource):
    """Prompts of scenes, with the columns ``prompt`` and ``scene``.

    Args:
        scenes: built when they are indexed.
        count: number of scenes, evenly spaced; None for all.
    """

    def __init__(self, scenes: Sequence[Scene], count: int | None, form: PromptFormat, kept: int = SCENES_KEPT) -> None:
        if not len(scenes):
            raise UserError("Expected scenes in every split that is used, but got none, try another share of the logs.")
        self.scenes, self.form = scenes, form
        self.count = len(scenes) if count is None else min(count, len(scenes))
        self._row = lru_cache(kept)(self._build)

    def __len__(self) -> int:
        return self.count

    def groups(self, index: Tensor) -> PromptGroups:
        rows = [self._row(number) for number in index.tolist()]
        return PromptGroups(index, {"prompt": [prompt for _, prompt in rows], "scene": [scene for scene, _ in rows]})

    def _build(self, number: int) -> tuple[Scene, Messages]:
        scene = self.scenes[number * len(self.scenes) // self.count]
        return scene, messages(scene, self.form)


class FollowUpPrompts(ScenePrompts):
    """Prompts of follow-ups; the column ``follows`` is the index of the first-stage prompt."""

    def __init__(self, groups: Sequence[Sequence[Scene]], form: PromptFormat) -> None:
        keys = [(group, place) for group in groups for place in range(len(group))]
        super().__init__(Scenes(keys, lambda key: key[0][key[1]]), None, form)
        self.follows = [number for number, group in enumerate(groups) for _ in range(len(group))]

    def groups(self, index: Tensor) -> PromptGroups:
        groups = super().groups(index)
        groups.columns["follows"] = [self.follows[number] for number in index.tolist()]
        return groups


class DrivingDemonstrations(ScenePrompts):
    """Prompts of scenes with the column ``completion``, see `NavsimDemonstrationsDataModule`."""

    def __init__(
        self,
        scenes: Sequence[Scene],
        count: int | None,
        form: PromptFormat,
        human: bool = False,
        thoughts: Thoughts | None = None,
    ) -> None:
        super().__init__(scenes, count, form, kept=0)
        self.human, self.thoughts = human, thoughts
        self._answers: dict[int, str] = {}

    def groups(self, index: Tensor) -> PromptGroups:
        """Raises:
        UserError: a demonstration is too short, a scene has no human, or thoughts have brackets.
        """
        groups = super().groups(index)
        scenes = dict(zip(index.tolist(), groups.columns["scene"], strict=True))
        new = {number: scene for number, scene in scenes.items() if number not in self._answers}
        drives = _humans(new.values()) if self.human else _experts(list(new.values()))
        for number, (poses, interval) in zip(new, drives, strict=True):
            answer = self.form.answer.write(poses, interval)
            self._answers[number] = self._with_thoughts(new[number], answer)
        groups.columns["completion"] = [self._answers[number] for number in index.tolist()]
        return groups

    def _with_thoughts(self, scene: Scene, trajectory: str) -> str:
        if self.thoughts is None:
            return trajectory
        answer = thought_first(self.thoughts(scene), trajectory)
        if self.form.answer.read(answer) is None:
            raise UserError(f"Expected thoughts without brackets, but got '{answer[:80]}' of scene '{scene.name}'.")
        return answer


def _humans(scenes: Iterable[Scene]) -> Iterator[tuple[Tensor, float]]:
    """Poses ``[P, 3]`` in the ego's frame, and seconds between poses."""
    for scene in scenes:
        if scene.human is None:
            raise UserError(f"Expected a human to demonstrate, but scene '{scene.name}' has none, try human=false.")
        yield scene.human, HUMAN_INTERVAL


def _experts(scenes: Sequence[Scene]) -> Iterator[tuple[Tensor, float]]:
    """Plans of PDM-Closed or of the scene."""
    for scene, found in zip(scenes, plan(scenes), strict=True):
        trajectory = found.trajectory if scene.pdm_trajectory is None else scene.pdm_trajectory
        yield in_ego(scene.ego.poses[-1], trajectory[1:]), DT
