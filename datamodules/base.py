"""Dataloaders of prompt groups."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities.types import EVAL_DATALOADERS

from lightning_cgrpo.core.errors import UserError, expect
from lightning_cgrpo.core.prompts.fingerprints import identities, number_of
from lightning_cgrpo.core.prompts.inventory import Pieces
from lightning_cgrpo.core.prompts.source import PairLoader, PromptLoader, PromptSource, PromptSubset
from lightning_cgrpo.core.randomness import Stream, generator, run_seed
from lightning_cgrpo.core.user_code import UserCode
from lightning_cgrpo.run.fingerprints import source_fingerprints
from lightning_cgrpo.run.looks import Used
from lightning_cgrpo.settings.objects import Stated

Split = Literal["train", "val", "test"]
SPLITS: dict[str, Split] = {"fit": "train", "validate": "val", "test": "test", "predict": "test"}
NUMBERS: dict[Split, int] = {"train": 0, "val": 1, "test": 2}
"""Splits in keys of randomness."""
STREAM_PROMPTS = 2
"""Prompts that tell one endless source from another."""


@dataclass(frozen=True)
class Certification:
    """The prompts of a look.

    Args:
        source: the prompts.
        words: that say which they are.
        identities: of the prompts, to leave them out of later looks; empty for an endless source.
        new_until: index after the last new prompt that this look draws from an endless source.
        companions: a prompt to show beside each, because a signal compares both answers; only the prompts count.
        clusters: numbers of the prompts' clusters, equal within one; None where clusters are not known, or each prompt
            is drawn independently.
    """

    source: PromptSource
    words: str
    identities: list[float] = field(default_factory=list)
    new_until: int = 0
    companions: PromptSource | None = None
    clusters: list[float] | None = None

    def loader(self, batch_size: int, worker: bool = False) -> PromptLoader:
        """Batches of at most this many prompts, over all processes; with companions, of about as many of both.

        Args:
            worker: make batches ahead in another process, see `PromptLoader`.
        """
        if self.companions is None:
            return PromptLoader(self.source, batch_size, worker=worker)
        return PairLoader(self.source, self.companions, max(batch_size // 2, 1), worker)


@dataclass(frozen=True)
class _Unused:
    """Test prompts that a look may show.

    Args:
        indices: of different prompts, by identity.
        numbers: of the test prompts that are left out, by words for the reason.
    """

    indices: dict[float, int]
    numbers: dict[str, int]

    @property
    def left_out(self) -> str:
        """Words for the prompts that are left out."""
        return " and".join(f" without {number:,} {what}" for what, number in self.numbers.items() if number)


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
        self.prompts_per_update, self.eval_prompts, self._seed = prompts_per_update, eval_prompts, seed
        self.test_train_prompts = test_train_prompts
        self.worker = False  # for sources that take longer than a process
        # Of test prompts by index, because reading images takes long.
        self._identities: dict[int, float] = {}
        self._clusters: dict[int, float] = {}

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
        if look is None:
            return
        try:
            source = self.source("test")
        except UserError:
            return  # `certify` may name the test prompts.
        if not getattr(source, "endless", False) and len(source) < look.prompts:
            raise UserError(
                f"Expected at least the {look.prompts:,} test prompts of the declared look, but got {len(source):,}, "
                f"try model.objective.look.prompts={len(source)}, or more test prompts."
            )

    def train_dataloader(self) -> PromptLoader:
        return self._training(self.source("train"), self.seed)

    def val_dataloader(self) -> EVAL_DATALOADERS:
        return self._evaluation("val")

    def test_dataloader(self) -> EVAL_DATALOADERS:
        loader = self._evaluation("test")
        if not self.test_train_prompts:
            return loader
        source = self.source("train")
        sample = PromptSubset(source, evenly_spaced(len(source), min(self.test_train_prompts, len(source))))
        return [loader, PromptLoader(sample, self.eval_prompts)]

    def predict_dataloader(self) -> EVAL_DATALOADERS:
        return self._evaluation("test")

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
        source, used = self.source("test"), used or Used()
        if getattr(source, "endless", False):
            return _new_prompts(source, count, used)
        unused = self._unused_prompts(source, used)
        left = len(unused.indices)
        if not left or (count is not None and count > left):
            advice = f"--prompts {left}, or more test prompts" if left else "other test prompts"
            raise UserError(
                f"Expected {count or 'some'} different prompts that neither trained nor validated, but got "
                f"{left}, of {len(source)} test prompts{unused.left_out}, try {advice}."
            )
        identities_left = list(unused.indices)
        words = f"the {left:,} test prompts{unused.left_out}"
        if count is not None and count < left:
            drawn = generator(self.seed, Stream.CERTIFY, len(source)).permutation(left)[:count]
            identities_left = [identities_left[number] for number in drawn]
            words = f"{count:,} of {len(source):,} test prompts{unused.left_out}"
        places = [unused.indices[identity] for identity in identities_left]
        clusters = [self._clusters[index] for index in places] if self._clusters else None
        return Certification(PromptSubset(source, places), words, identities=identities_left, clusters=clusters)

    def _unused_prompts(self, source: PromptSource, used: Used) -> _Unused:
        """The different test prompts that neither the run nor an earlier look used."""
        numbers: dict[str, int] = {}
        seen: set[int] = set()
        for use, indices in self._uses(source, used):
            numbers[use] = len(indices - seen)
            seen |= indices
        unseen = [index for index in range(len(source)) if index not in seen]
        first_of = self._distinct(source, unseen)
        looked = used.looked & first_of.keys()
        numbers |= {"repeats": len(unseen) - len(first_of), "that earlier looks saw": len(looked)}
        return _Unused({identity: index for identity, index in first_of.items() if identity not in looked}, numbers)

    def _uses(self, source: PromptSource, used: Used) -> Iterator[tuple[str, set[int]]]:
        """Indices of the test prompts that the run used, by words for the use."""
        here = source_fingerprints(source) if used.run else None
        if here is not None:
            for use, fingerprints in used.run.items():
                yield use, {*torch.isin(here[:, 1], fingerprints).nonzero().flatten().tolist()}
        yield "that trained or validated", self._shared_prompts(source)

    def stream(self) -> str:
        """The fingerprint of an endless source of test prompts, by its first prompts."""
        first = self.source("test").groups(torch.arange(STREAM_PROMPTS))
        return "".join(f"{int(number):014x}" for number in identities(first).tolist())

    def _distinct(self, source: PromptSource, indices: Sequence[int]) -> dict[float, int]:
        """The first index of each prompt by its identity, because repeats of a prompt are no further evidence."""
        unread = [index for index in indices if index not in self._identities]
        for start in range(0, len(unread), self.eval_prompts):
            part = unread[start : start + self.eval_prompts]
            groups = source.groups(torch.tensor(part))
            self._identities |= zip(part, identities(groups).tolist(), strict=True)
            if groups.clusters is not None:
                self._clusters |= zip(part, map(number_of, groups.clusters), strict=True)
        first: dict[float, int] = {}
        for index in indices:
            first.setdefault(self._identities[index], index)
        return first

    def _shared_prompts(self, source: PromptSource) -> set[int]:
        """Indices of test prompts that are training or validation prompts, too."""
        here = source_fingerprints(source)
        shared: set[int] = set()
        for other in self.overlapping_sources():
            there = source_fingerprints(other)
            if here is not None and there is not None:
                shared |= {*torch.isin(here[:, 1], there[:, 1]).nonzero().flatten().tolist()}
        return shared

    def overlapping_sources(self) -> Sequence[PromptSource]:
        """Training and validation prompts that may be test prompts, too; none where splits are disjoint."""
        return ()

    def _updates_done(self) -> int:
        return self.trainer.global_step if self.trainer is not None else 0

    def _training(self, source: PromptSource, seed: int | None) -> PromptLoader:
        return PromptLoader(
            source,
            self.prompts_per_update,
            seed,
            start=self._updates_done,
            drop_last=True,
            worker=self.worker,
            limit=None if self.trainer is None else self.trainer.limit_train_batches,
        )

    def _evaluation(self, split: Split) -> PromptLoader:
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


def _new_prompts(source: PromptSource, count: int | None, used: Used) -> Certification:
    """The next prompts of an endless source, after the test prompts and those of earlier looks."""
    total = len(source)
    count = total if count is None else count
    first = max(total, used.new_until)  # the number of test prompts may differ from that of earlier looks
    new = PromptSubset(source, range(first, first + count))
    return Certification(new, f"{count:,} new prompts", new_until=first + count)


def evenly_spaced(total: int, count: int) -> list[int]:
    """Indices from 0 on.

    Example:
        >>> evenly_spaced(10, 3)
        [0, 3, 6]
    """
    return [number * total // count for number in range(count)]
