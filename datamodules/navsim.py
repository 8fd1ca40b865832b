"""Driving scenes as prompts, and demonstrations of answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from lightning.pytorch.utilities.types import EVAL_DATALOADERS

from driving_scenes.generator import GeneratedScenes
from driving_scenes.scene import Scene
from driving_scenes.source import Scenes, SceneSource, WithoutEnd
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.prompts.inventory import Pieces
from lightning_cgrpo.core.prompts.source import PairLoader, PromptLoader, PromptSubset
from lightning_cgrpo.datamodules.base import (
    SPLITS,
    GeneratedDataModule,
    Split,
    evenly_spaced,
)
from lightning_cgrpo.datamodules.certification import Certification
from lightning_cgrpo.run.looks import Used
from lightning_cgrpo.tasks.driving.prompts import PromptFormat
from lightning_cgrpo.tasks.driving.scene_prompts import (
    DrivingDemonstrations,
    FollowUpPrompts,
    MixedPrompts,
    ScenePrompts,
)
from lightning_cgrpo.tasks.driving.task import DrivingTask
from lightning_cgrpo.tasks.driving.thoughts import Thoughts


class NavsimDataModule(GeneratedDataModule):
    """Driving scenes, with the columns ``prompt``, a chat with images, ``scene``, and ``plan``, the expert's.

    Scenes are evenly spaced over the source, because neighbors are alike. Null counts take all scenes of a finite
    source. Splits share no log.

    Args: see `GeneratedDataModule`, and

        scenes: the source; default: scenes generated from `seed`.
        form: content of a prompt.
        follow_ups: also test second-stage scenes, in another dataloader. Column ``follows``: index of the first-stage
            prompt.
        train_follow_ups: share of the training prompts that show a second-stage scene instead of its first-stage scene.
        val_follow_ups: share of the validation prompts; by default that of the training prompts. `certify` shows none,
            so a declared look wants 0.
        frame_pairs: the second half of a batch's prompts are the frames 0.5 s after the first half's, so that the
            signal ``two_frame_extended_comfort`` applies. So half of a count are scenes; null shows all of a
            split, each with its next frame. A test then has EC, and no follow-ups. A certificate has EC, and counts the
            first frames.
        worker: make scenes, images and plans ahead in another process, for training and looks; on Linux only.

    Raises:
        UserError: a split takes all scenes of an endless source; (from `setup`) the source is too small to split, a
            process would have no pair of frames, or the task reads another answer format.
    """

    evaluation_arguments = ("val_prompts", "val_follow_ups")

    def __init__(
        self,
        prompts_per_update: int = 8,
        scenes: SceneSource | None = None,
        form: PromptFormat = PromptFormat(),  # noqa: B008 (frozen)
        train_prompts: int | None = 16_000,
        val_prompts: int | None = 64,
        test_prompts: int | None = 256,
        follow_ups: bool = False,
        train_follow_ups: float = 0.0,
        val_follow_ups: float | None = None,
        frame_pairs: bool = False,
        worker: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(prompts_per_update, train_prompts, val_prompts, test_prompts, **options)
        if val_follow_ups is None:
            val_follow_ups = train_follow_ups
        self.shares: dict[Split, float] = {"train": train_follow_ups, "val": val_follow_ups, "test": 0.0}
        for split, share in self.shares.items():
            if not 0 <= share <= 1:
                raise UserError(f"Expected argument `{split}_follow_ups` to be in [0, 1], but got {share}.")
        self.worker = worker
        self.frame_pairs = frame_pairs
        self.form = form
        self.follow_ups = follow_ups
        self._source = scenes
        for split, count in self.counts.items():
            if count is None and (scenes is None or scenes.endless):
                raise UserError(
                    f"Expected argument `{split}_prompts` to be a number of scenes, but got null, all of those of "
                    f"{type(scenes or GeneratedScenes()).__name__}, which have no end, try data.{split}_prompts=256, "
                    "or data.scenes.count=256 for every split."
                )

    @cached_property
    def scenes(self) -> SceneSource:
        return GeneratedScenes(self.seed) if self._source is None else self._source

    def setup(self, stage: str) -> None:
        super().setup(stage)
        processes = 1 if self.trainer is None else self.trainer.world_size
        if stage == "fit" and self.frame_pairs and self.prompts_per_update < 2 * processes:
            raise UserError(
                f"Expected data.prompts_per_update to be at least {2 * processes}, a pair of frames for each process, "
                f"but got {self.prompts_per_update}."
            )
        task = None if self.trainer is None else getattr(self.trainer.lightning_module, "task", None)
        if isinstance(task, DrivingTask) and task.answer != self.form.answer:
            raise UserError(
                f"Expected prompts to ask for what the task reads, but got {self.form.answer} in data.form.answer and "
                f"{task.answer} in model.task.answer, try the same in both."
            )

    def inventory(self, split: Split) -> list[Pieces]:
        pieces = []
        for files in self.scenes.inventory(split):
            pieces.append(Pieces(files.kind, files.expected, files.faults, needed=files.needed))
        return pieces or super().inventory(split)

    def prepare_data(self) -> None:
        """Have one process of each machine read new files, before all processes do."""
        running = None if self.trainer is None else self.trainer.state.fn
        self.scenes.scenes(SPLITS[running or "fit"])

    def source(self, split: Split) -> ScenePrompts:
        if split != "train":
            return ScenePrompts(*self._scenes_and_count(split), self.form)
        training = self._mixed_prompts(split)
        training.kept = 0  # each is shown once in a pass
        return training

    def _mixed_prompts(self, split: Split) -> MixedPrompts:
        next_frames = self.scenes.next_frames(split) if self.frame_pairs else None
        scenes, count = self._scenes_and_count(split)
        return MixedPrompts(scenes, count, self.form, self._follow_ups(split), self.shares[split], next_frames)

    def _evaluation_loader(self, split: Split) -> PromptLoader:
        if not self.frame_pairs:
            return PromptLoader(self._mixed_prompts(split), self.eval_prompts)
        # Half of the prompts are scenes, over the whole split, and half are their next frames.
        scenes, count = self._scenes_and_count(split)
        if count is not None:
            count = max(count // 2, 1)
        first_frames = MixedPrompts(scenes, count, self.form, self._follow_ups(split), self.shares[split])
        return PairLoader(first_frames, self._next_frames(split, count), max(self.eval_prompts // 2, 1))

    def _next_frames(self, split: Split, count: int | None) -> ScenePrompts:
        """The frame 0.5 s after each scene; a scene whose next frame is unknown is shown again, without a comfort."""
        scenes = self.scenes.scenes(split)
        next_frames = self.scenes.next_frames(split)
        places: Sequence[int] = WithoutEnd() if self.scenes.endless else range(len(scenes))
        shown = Scenes(places, lambda place: next_frames[place] or scenes[place])
        return ScenePrompts(shown, count, self.form)

    def _follow_ups(self, split: Split) -> Sequence[Sequence[Scene]]:
        return self.scenes.follow_ups(split) if self.shares[split] else ()

    def certification(self, count: int | None, used: Used | None = None) -> Certification:
        """As in other data; with `frame_pairs`, the frame 0.5 s after each scene is shown, too."""
        chosen = super().certification(count, used)
        if not self.frame_pairs:
            return chosen
        assert isinstance(chosen.source, PromptSubset)
        companions = PromptSubset(self._next_frames("test", self.counts["test"]), chosen.source.index)
        return replace(chosen, words=f"{chosen.words}, each with its next frame", companions=companions)

    def test_dataloader(self) -> EVAL_DATALOADERS:
        """Add the loader ``test_follow_ups``; the loaders then form a dictionary."""
        loaders = super().test_dataloader()
        if not self.follow_ups or self.frame_pairs:
            return loaders
        source = self.source("test")
        follow_ups = self.scenes.follow_ups("test")
        tested = evenly_spaced(len(source.scenes), len(source))  # numbers of the first-stage scenes
        groups = [follow_ups[number] for number in tested]
        if not any(len(group) for group in groups):
            return loaders
        if not isinstance(loaders, list):
            loaders = [loaders]
        named = dict(zip(("test", "test_train"), loaders, strict=False))
        named["test_follow_ups"] = PromptLoader(FollowUpPrompts(groups, self.form), self.eval_prompts)
        return named

    def predict_dataloader(self) -> PromptLoader:
        """Without the expert's plans, because scenes without a map can be answered, too."""
        source = ScenePrompts(*self._scenes_and_count("test"), self.form)
        source.planned = False
        return PromptLoader(source, self.eval_prompts)

    def _scenes_and_count(self, split: Split) -> tuple[Sequence[Scene], int | None]:
        return self.scenes.scenes(split), self.counts[split]


class NavsimDemonstrationsDataModule(NavsimDataModule):
    """Driving scenes for fine-tuning; in training, an expert's drive of 4 s is the column ``completion``.

    Args: see `NavsimDataModule`, and

        human: demonstrate the human's drive; default: PDM-Closed, the score's planner.
        thoughts: text before the trajectory; default: none.
    """

    def __init__(
        self,
        prompts_per_update: int = 32,
        scenes: SceneSource | None = None,
        form: PromptFormat = PromptFormat(),  # noqa: B008 (frozen)
        human: bool = False,
        thoughts: Thoughts | None = None,
        **options: Any,
    ) -> None:
        super().__init__(prompts_per_update, scenes, form, **options)
        self.human = human
        self.thoughts = thoughts

    def demonstrations(self) -> DrivingDemonstrations:
        """The training prompts, with answers."""
        return DrivingDemonstrations(*self._scenes_and_count("train"), self.form, self.human, self.thoughts)

    def train_dataloader(self) -> PromptLoader:
        return self._training_loader(self.demonstrations(), self.seed)
