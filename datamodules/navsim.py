"""Driving scenes as prompts, from any source of scenes; and demonstrations of how to answer them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

from lightning.pytorch.utilities.types import EVAL_DATALOADERS
from torch import Tensor

from lightning_cgrpo.datamodules.base import GroupDataModule, PromptLoader, PromptSource, Split, evenly_spaced
from lightning_cgrpo.errors import UserError
from lightning_cgrpo.navsim.baselines import HUMAN_INTERVAL
from lightning_cgrpo.navsim.expert.pdm_closed import plan
from lightning_cgrpo.navsim.simulation.interpolation import in_ego
from lightning_cgrpo.navsim.simulation.timing import DT
from lightning_cgrpo.rollout import PromptGroups
from lightning_cgrpo.scenes.generator import GeneratedScenes
from lightning_cgrpo.scenes.scene import Scene
from lightning_cgrpo.scenes.source import Scenes, SceneSource
from lightning_cgrpo.tasks.driving.prompts import PromptFormat, messages
from lightning_cgrpo.tasks.driving.task import DrivingTask
from lightning_cgrpo.tasks.driving.thoughts import Thoughts, thought_first

SCENES_KEPT = 512
"""Built scenes and their prompts, images included, that evaluations keep: they show the same ones again."""
Messages = list[dict[str, Any]]


class NavsimDataModule(GroupDataModule):
    """Driving scenes; columns ``prompt``, a chat with images, and ``scene``. See `tasks.driving.prompts`.

    A split has at most as many scenes as its argument says, evenly spaced over those of the source (the scenes of one
    log are neighbors, and alike); with null all of them, of a source that has an end. No log is in two splits.

    Args:
        prompts_per_update: scenes per update, over all processes.
        scenes: where they come from; by default they are generated, from `seed`.
        form: what prompts show and ask for.
        train_prompts: scenes for training, one epoch.
        val_prompts: scenes for validation.
        test_prompts: scenes for testing and prediction.
        eval_prompts: scenes per batch in evaluation.
        max_eval_prompts: evaluate on at most this many of a split's first scenes; all by default.
        test_train_prompts: measure at most this many training scenes, evenly spaced, in a test as well.
        follow_ups: test, beside the test scenes, on those of the second stage, where the source has any: a dataloader
            by itself, with the column ``follows``, the index of the prompt that each one follows.
        seed: of the order of the scenes, and of generated scenes; by default the seed of `lightning.seed_everything`.

    Raises:
        UserError: a split has all scenes of a source without end; from `setup`, if the source has nothing to read, or
            too little to split, or the task reads other answers than the form asks for.
    """

    def __init__(
        self,
        prompts_per_update: int = 8,
        scenes: SceneSource | None = None,
        form: PromptFormat = PromptFormat(),  # noqa: B008 (frozen)
        train_prompts: int | None = 16_000,
        val_prompts: int | None = 64,
        test_prompts: int | None = 256,
        eval_prompts: int = 64,
        max_eval_prompts: int | None = None,
        test_train_prompts: int = 0,
        follow_ups: bool = False,
        seed: int | None = None,
    ) -> None:
        super().__init__(prompts_per_update, eval_prompts, max_eval_prompts, test_train_prompts, seed)
        self.follow_ups = follow_ups
        counts = {"train_prompts": train_prompts, "val_prompts": val_prompts, "test_prompts": test_prompts}
        self._given_scenes = scenes
        for name, count in counts.items():
            if count is not None and count < 1:
                raise ValueError(f"Expected argument `{name}` to be at least 1, but got {count}.")
            if count is None and (scenes is None or scenes.endless):
                raise UserError(
                    f"Expected argument `{name}` to be a number of scenes, but got null, all of those of "
                    f"{type(scenes or GeneratedScenes()).__name__}, which have no end, try data.{name}=256, or "
                    "data.scenes.count=256 for every split."
                )
        self.form = form
        self.counts = {"train": train_prompts, "val": val_prompts, "test": test_prompts, "predict": test_prompts}

    @cached_property
    def scenes(self) -> SceneSource:
        """The argument `scenes`, or generated scenes of the `seed`."""
        return GeneratedScenes(self.seed) if self._given_scenes is None else self._given_scenes

    def setup(self, stage: str) -> None:
        """Look for the scenes already here, so that what is missing is reported before a model is loaded."""
        split: dict[str, Split] = {"fit": "train", "validate": "val", "test": "test", "predict": "predict"}
        self.source(split[stage])
        task = None if self.trainer is None else getattr(self.trainer.lightning_module, "task", None)
        if isinstance(task, DrivingTask) and task.answer != self.form.answer:
            raise UserError(
                f"Expected prompts to ask for what the task reads, but got {self.form.answer} in data.form.answer and "
                f"{task.answer} in model.task.answer, try the same in both."
            )

    def source(self, split: Split) -> PromptSource:
        return ScenePrompts(*self._scenes(split), self.form, kept=0 if split == "train" else SCENES_KEPT)

    def test_dataloader(self) -> EVAL_DATALOADERS:
        """As in `GroupDataModule`; with follow-ups, by split: the last one is ``test_follow_ups``."""
        loaders = super().test_dataloader()
        if not self.follow_ups:
            return loaders
        scenes, count = self._scenes("test")
        used = evenly_spaced(len(scenes), len(scenes) if count is None else min(count, len(scenes)))
        after = self.scenes.follow_ups("test")
        groups = [after[number] for number in used[: self.max_eval_prompts]]
        if not any(len(group) for group in groups):
            return loaders
        named = dict(zip(("test", "test_train"), loaders if isinstance(loaders, list) else [loaders], strict=False))
        return named | {"test_follow_ups": PromptLoader(FollowUpPrompts(groups, self.form), self.eval_prompts)}

    def _scenes(self, split: Split) -> tuple[Sequence[Scene], int | None]:
        """The source's scenes of a split, and how many of them to take."""
        return self.scenes.scenes("test" if split == "predict" else split), self.counts[split]


class NavsimDemonstrationsDataModule(NavsimDataModule):
    """The same for supervised fine-tuning, in training with the column ``completion``: how an expert drives, as text.

    Args:
        prompts_per_update: scenes per update, over all processes.
        scenes: where they come from; by default they are generated, from `seed`.
        form: what prompts show and ask for; demonstrations are 4 s long.
        human: the human demonstrates, whom every scene must have then, and not PDM-Closed, the planner of the score.
        train_prompts: scenes for training, one epoch.
        val_prompts: scenes for validation.
        test_prompts: scenes for testing and prediction.
        eval_prompts: scenes per batch in evaluation.
        max_eval_prompts: evaluate on at most this many of a split's first scenes; all by default.
        seed: of the order of the scenes, and of generated scenes; by default the seed of `lightning.seed_everything`.
        thoughts: what demonstrations say before they drive; nothing by default.
    """

    def __init__(
        self,
        prompts_per_update: int = 32,
        scenes: SceneSource | None = None,
        form: PromptFormat = PromptFormat(),  # noqa: B008 (frozen)
        human: bool = False,
        train_prompts: int | None = 16_000,
        val_prompts: int | None = 64,
        test_prompts: int | None = 256,
        eval_prompts: int = 64,
        max_eval_prompts: int | None = None,
        seed: int | None = None,
        thoughts: Thoughts | None = None,
    ) -> None:
        super().__init__(
            prompts_per_update,
            scenes,
            form,
            train_prompts,
            val_prompts,
            test_prompts,
            eval_prompts,
            max_eval_prompts,
            seed=seed,
        )
        self.human = human
        self.thoughts = thoughts

    def train_dataloader(self) -> PromptLoader:
        source = Demonstrations(*self._scenes("train"), self.form, self.human, self.thoughts)
        return PromptLoader(source, self.prompts_per_update, seed=self.seed, start=self._updates_done, drop_last=True)


class ScenePrompts:
    """Prompts of scenes.

    Args:
        scenes: built when they are indexed.
        count: how many of them, evenly spaced, if there are more; None for all.
        form: of the prompts.
        kept: how many, the last ones, need not be built again.

    Raises:
        UserError: there are none.
    """

    def __init__(self, scenes: Sequence[Scene], count: int | None, form: PromptFormat, kept: int = SCENES_KEPT) -> None:
        if not len(scenes):
            raise UserError("Expected scenes in every split that is used, but got none, try another share of the logs.")
        self.scenes, self.form, self.kept = scenes, form, kept
        self.count = len(scenes) if count is None else min(count, len(scenes))
        self._built: OrderedDict[int, tuple[Scene, Messages]] = OrderedDict()

    def __len__(self) -> int:
        return self.count

    def groups(self, index: Tensor) -> PromptGroups:
        """Columns ``prompt`` and ``scene``, lists.

        Raises:
            SceneError: a scene can't be read, or shown.
        """
        rows = [self._row(number) for number in index.tolist()]
        return PromptGroups(index, {"prompt": [prompt for _, prompt in rows], "scene": [scene for scene, _ in rows]})

    def _row(self, number: int) -> tuple[Scene, Messages]:
        if number in self._built:
            self._built.move_to_end(number)
            return self._built[number]
        scene = self.scenes[number * len(self.scenes) // self.count]
        row = scene, messages(scene, self.form)
        if self.kept:
            self._built[number] = row
            if len(self._built) > self.kept:
                self._built.popitem(last=False)
        return row


class FollowUpPrompts(ScenePrompts):
    """Prompts of scenes of the second stage, with a column ``follows``: the index of the prompt before.

    Args:
        groups: of each prompt the scenes that follow it.
        form: of the prompts.
    """

    def __init__(self, groups: Sequence[Sequence[Scene]], form: PromptFormat) -> None:
        keys = [(group, place) for group in groups for place in range(len(group))]
        super().__init__(Scenes(keys, lambda key: key[0][key[1]]), None, form)
        self.follows = [number for number, group in enumerate(groups) for _ in range(len(group))]

    def groups(self, index: Tensor) -> PromptGroups:
        groups = super().groups(index)
        groups.columns["follows"] = [self.follows[number] for number in index.tolist()]
        return groups


class Demonstrations(ScenePrompts):
    """The same with a column ``completion``.

    Args:
        scenes: built when they are indexed.
        count: how many of them.
        form: of the prompts and answers.
        human: see `NavsimDemonstrationsDataModule`.
        thoughts: what answers begin with.
    """

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
        """Also ``completion``, texts.

        Raises:
            UserError: answers are longer than demonstrations, or a scene has no human, or thoughts that can't
                stand before a trajectory.
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
    """Poses ``[P, 3]`` in the ego's frame, and the seconds between them."""
    for scene in scenes:
        if scene.human is None:
            raise UserError(f"Expected a human to demonstrate, but scene '{scene.name}' has none, try human=false.")
        yield scene.human, HUMAN_INTERVAL


def _experts(scenes: Sequence[Scene]) -> Iterator[tuple[Tensor, float]]:
    """Likewise of PDM-Closed's plans; of those that the scenes themselves give, where they do."""
    for scene, found in zip(scenes, plan(scenes), strict=True):
        trajectory = found.trajectory if scene.pdm_trajectory is None else scene.pdm_trajectory
        yield in_ego(scene.ego.poses[-1], trajectory[1:]), DT
