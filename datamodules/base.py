"""What all DataModules share: which prompts an update gets, on which process, in which order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, Protocol

import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities.types import EVAL_DATALOADERS
from torch import Tensor

from lightning_cgrpo.distributed import world
from lightning_cgrpo.errors import UserError
from lightning_cgrpo.randomness import Stream, generator, run_seed
from lightning_cgrpo.rollout import PromptGroups

Split = Literal["train", "val", "test", "predict"]


class PromptSource(Protocol):
    """A data set of prompts, addressed by index."""

    def __len__(self) -> int: ...

    def groups(self, index: Tensor) -> PromptGroups:
        """The prompts of ``index [B]``, always the same for the same index."""


class PromptLoader:
    """Batches of a source for one process: contiguous shares of batches that are the same whatever the processes.

    Which prompts a batch holds follows from the batch's number alone, so that a resumed run continues exactly.

    Args:
        source: the prompts.
        batch_size: prompts per batch, over all processes.
        seed: if given, the order is shuffled anew for every pass.
        start: number of the first batch to yield, asked when iteration begins; counts on over the passes.
        drop_last: leave out the prompts that don't fill the last batch of a pass.
    """

    def __init__(
        self,
        source: PromptSource,
        batch_size: int,
        seed: int | None = None,
        start: Callable[[], int] = lambda: 0,
        drop_last: bool = False,
    ) -> None:
        self.source, self.batch_size, self.seed, self.start = source, batch_size, seed, start
        batches, rest = divmod(len(source), batch_size)
        self.batches = batches + bool(rest and not drop_last)
        if self.batches == 0:
            if not drop_last:
                raise UserError("Expected prompts to evaluate on, but got none.")
            raise UserError(
                f"Expected at least {batch_size} training prompts, for one update, but got {len(source)}, try a "
                "smaller data.prompts_per_update, or more prompts."
            )

    def __len__(self) -> int:
        return self.batches

    def state_dict(self) -> dict[str, Any]:
        """Nothing, which tells Lightning that iteration resumes at any update: the trainer counts them."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to load."""

    def __iter__(self) -> Iterator[PromptGroups]:
        epoch, first = divmod(self.start(), self.batches)
        order = torch.arange(len(self.source))
        if self.seed is not None:
            order = torch.from_numpy(generator(self.seed, Stream.ORDER, epoch).permutation(len(self.source)))
        rank, size = world()
        for batch in range(first, self.batches):
            index = order[batch * self.batch_size : (batch + 1) * self.batch_size]
            yield self.source.groups(index.tensor_split(size)[rank])


class GroupDataModule(LightningDataModule, ABC):
    """Prompt groups for training and evaluation.

    Args:
        prompts_per_update: prompts of one update (one rollout), over all processes.
        eval_prompts: prompts per batch in validation and test, over all processes.
        max_eval_prompts: evaluate on at most this many of a split's first prompts; all by default.
        test_train_prompts: measure at most this many training prompts, evenly spaced, in a test as well.
        seed: of the order of the prompts, and of generated prompts; by default the seed of
            `lightning.seed_everything`.
    """

    def __init__(
        self,
        prompts_per_update: int,
        eval_prompts: int = 64,
        max_eval_prompts: int | None = None,
        test_train_prompts: int = 0,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        counts = {"prompts_per_update": prompts_per_update, "eval_prompts": eval_prompts}
        for name, value in {**counts, "max_eval_prompts": max_eval_prompts}.items():
            if value is not None and value < 1:
                raise ValueError(f"Expected argument `{name}` to be at least 1, but got {value}.")
        if test_train_prompts < 0:
            raise ValueError(f"Expected argument `test_train_prompts` to be at least 0, but got {test_train_prompts}.")
        self.prompts_per_update, self.eval_prompts, self._seed = prompts_per_update, eval_prompts, seed
        self.max_eval_prompts, self.test_train_prompts = max_eval_prompts, test_train_prompts

    @property
    def seed(self) -> int:
        """The argument `seed`; by default the seed of `lightning.seed_everything`, or 0 without a call of it."""
        return run_seed(self._seed)

    @abstractmethod
    def source(self, split: Split) -> PromptSource:
        """The prompts of a split. Called once per split and process; splits share no prompt."""

    def train_dataloader(self) -> PromptLoader:
        return PromptLoader(
            self.source("train"), self.prompts_per_update, seed=self.seed, start=self._updates_done, drop_last=True
        )

    def val_dataloader(self) -> EVAL_DATALOADERS:
        return self._evaluation("val")

    def test_dataloader(self) -> EVAL_DATALOADERS:
        """Of the test prompts; with `test_train_prompts`, a second one of training prompts."""
        loader = self._evaluation("test")
        if not self.test_train_prompts:
            return loader
        source = self.source("train")
        count = min(self.test_train_prompts, len(source))
        sample = _Part(source, evenly_spaced(len(source), count))
        return [loader, PromptLoader(sample, self.eval_prompts)]

    def predict_dataloader(self) -> EVAL_DATALOADERS:
        return self._evaluation("predict")

    def _updates_done(self) -> int:
        return self.trainer.global_step if self.trainer is not None else 0

    def _evaluation(self, split: Split) -> PromptLoader:
        source = self.source(split)
        if self.max_eval_prompts is not None and self.max_eval_prompts < len(source):
            source = _Part(source, range(self.max_eval_prompts))
        return PromptLoader(source, self.eval_prompts)


class _Part:
    """Some prompts of a source, which keep their index."""

    def __init__(self, source: PromptSource, index: Sequence[int]) -> None:
        self.source, self.index = source, torch.tensor(index)

    def __len__(self) -> int:
        return len(self.index)

    def groups(self, index: Tensor) -> PromptGroups:
        return self.source.groups(self.index[index])


def evenly_spaced(total: int, count: int) -> list[int]:
    """`count` of `total` prompts, from the first on.

    Example:
        >>> evenly_spaced(10, 3)
        [0, 3, 6]
    """
    return [number * total // count for number in range(count)]
