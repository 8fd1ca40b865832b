"""Dataloaders of prompt groups."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Literal

import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities.types import EVAL_DATALOADERS

from lightning_cgrpo.core.errors import UserError, expect
from lightning_cgrpo.core.prompts.fingerprints import identities
from lightning_cgrpo.core.prompts.inventory import Pieces
from lightning_cgrpo.core.prompts.source import PromptLoader, PromptSource, PromptSubset, is_endless
from lightning_cgrpo.core.randomness import run_seed
from lightning_cgrpo.core.user_code import UserCode
from lightning_cgrpo.datamodules.certification import Certification, LookPrompts, new_prompts
from lightning_cgrpo.run.looks import Used
from lightning_cgrpo.settings.objects import Stated

Split = Literal["train", "val", "test"]
SPLITS: dict[str, Split] = {"fit": "train", "validate": "val", "test": "test", "predict": "test"}
NUMBERS: dict[Split, int] = {"train": 0, "val": 1, "test": 2}
"""Splits in keys of randomness."""
STREAM_PROMPTS = 2**30, 2**30 + 1
"""Indices of the prompts that tell one endless source from another: beyond every number of test prompts, because
scenes of a test are spaced by their number."""


class GroupDataModule(Stated, LightningDataModule, ABC):
    """Prompt groups for training and evaluation.

    Args:
        prompts_per_update: prompts of one update, over all processes.
        eval_prompts: prompts per evaluation batch, over all processes.
        test_train_prompts: also test this many training prompts, evenly spaced.
        seed: orders and generates prompts; default: `lightning.seed_everything`'s.
    """

    def __init__(
        self,
        prompts_per_update: int,
        eval_prompts: int = 64,
        test_train_prompts: int = 0,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        expect(prompts_per_update >= 1, "prompts_per_update", "at least 1", prompts_per_update)
        expect(eval_prompts >= 1, "eval_prompts", "at least 1", eval_prompts)
        expect(test_train_prompts >= 0, "test_train_prompts", "at least 0", test_train_prompts)
        self.prompts_per_update = prompts_per_update
        self.eval_prompts = eval_prompts
        self._seed = seed
        self.test_train_prompts = test_train_prompts
        self.worker = False  # for sources that take longer than a process
        self._look_prompts = LookPrompts(eval_prompts)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # Without an error, its prompts that trained would count as unused.
        if "seen_prompts" in vars(cls):
            raise UserError(
                f"Expected {cls.__name__} to tell prompts that splits share by overlapping_sources, but got the "
                "earlier seen_prompts, which is not called any more, try returning the training and validation prompts."
            )

    @property
    def seed(self) -> int:
        """`seed`, else the seed of `lightning.seed_everything`, else 0."""
        return run_seed(self._seed)

    @abstractmethod
    def source(self, split: Split) -> PromptSource:
        """Prompts of a split; splits share no prompt. ``predict`` answers the test prompts."""

    def inventory(self, split: Split) -> list[Pieces]:
        """Pieces that a split's prompts are read from, for the command `data`."""
        with UserCode(f"{type(self).__name__}.source"):
            return [Pieces("prompts", len(self.source(split)))]

    def setup(self, stage: str) -> None:
        with UserCode(f"{type(self).__name__}.source"):
            self.source(SPLITS[stage])
        if stage == "fit":
            self._check_look()

    def _check_look(self) -> None:
        """Refuse a declared look at more prompts than the test has, before training aims at what it would show."""
        module = None if self.trainer is None else self.trainer.lightning_module
        look = getattr(getattr(module, "objective", None), "look", None)
        # A data module without test prompts gets some from `certify`.
        if look is None or getattr(self, "needs_test_path", False):
            return
        with UserCode(f"{type(self).__name__}.source"):
            source = self.source("test")
        if not is_endless(source) and len(source) < look.prompts:
            raise UserError(
                f"Expected at least the {look.prompts:,} test prompts of the declared look, but got {len(source):,}, "
                f"try model.objective.look.prompts={len(source)}, or more test prompts."
            )

    def train_dataloader(self) -> PromptLoader:
        return self._training_loader(self.source("train"), self.seed)

    def val_dataloader(self) -> EVAL_DATALOADERS:
        return self._evaluation_loader("val")

    def test_dataloader(self) -> EVAL_DATALOADERS:
        loader = self._evaluation_loader("test")
        if not self.test_train_prompts:
            return loader
        source = self.source("train")
        count = min(self.test_train_prompts, len(source))
        sample = PromptSubset(source, evenly_spaced(len(source), count))
        return [loader, PromptLoader(sample, self.eval_prompts)]

    def predict_dataloader(self) -> EVAL_DATALOADERS:
        return self._evaluation_loader("test")

    def certification(self, count: int | None, used: Used | None = None) -> Certification:
        """Prompts that neither train nor select policies, and that no earlier look at the run saw.

        An endless source gives new prompts, which no test has used. Other sources give a random part of the test
        prompts, without copies of training and validation prompts, and without repeats.

        Args:
            count: number of prompts; None for as many as the test prompts, or as are left.
            used: prompts of the run and of earlier looks.

        Raises:
            UserError: there are too few.
        """
        source = self.source("test")
        used = used or Used()
        if is_endless(source):
            return new_prompts(source, count, used)
        return self._look_prompts.choose(source, self.overlapping_sources(), count, used, self.seed)

    def stream(self) -> str:
        """The fingerprint of an endless source of test prompts, whatever their number."""
        prompts = self.source("test").groups(torch.tensor(STREAM_PROMPTS))
        return "".join(f"{int(number):014x}" for number in identities(prompts).tolist())

    def overlapping_sources(self) -> Sequence[PromptSource]:
        """Training and validation prompts that may be test prompts, too; none where splits are disjoint."""
        return ()

    def _updates_done(self) -> int:
        return self.trainer.global_step if self.trainer is not None else 0

    def _training_loader(self, source: PromptSource, seed: int | None) -> PromptLoader:
        return PromptLoader(
            source,
            self.prompts_per_update,
            seed,
            start=self._updates_done,
            drop_last=True,
            worker=self.worker,
            limit=None if self.trainer is None else self.trainer.limit_train_batches,
        )

    def _evaluation_loader(self, split: Split) -> PromptLoader:
        return PromptLoader(self.source(split), self.eval_prompts)


class GeneratedDataModule(GroupDataModule):
    """Prompts that follow from an index and the seed.

    Args:
        train_prompts: training prompts, one epoch.
        val_prompts: validation prompts.
        test_prompts: prompts for test and prediction.
        options: of `GroupDataModule`.
    """

    evaluation_arguments: tuple[str, ...] = ("val_prompts",)

    def __init__(
        self,
        prompts_per_update: int,
        train_prompts: int | None,
        val_prompts: int | None,
        test_prompts: int | None,
        **options: Any,
    ) -> None:
        super().__init__(prompts_per_update, **options)
        self.counts: dict[Split, Any] = {"train": train_prompts, "val": val_prompts, "test": test_prompts}
        for split, count in self.counts.items():
            expect(count is None or count >= 1, f"{split}_prompts", "at least 1", count)


def evenly_spaced(total: int, count: int) -> list[int]:
    """Indices from 0 on.

    Example:
        >>> evenly_spaced(10, 3)
        [0, 3, 6]
    """
    return [number * total // count for number in range(count)]
