"""Prompts by index, and batches of prompts for one process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lightning_cgrpo.core.copies import copied
from lightning_cgrpo.core.distributed import world
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.prompts.worker import AVAILABLE, made_ahead
from lightning_cgrpo.core.randomness import Stream, generator
from lightning_cgrpo.core.rollout import PromptGroups
from lightning_cgrpo.core.user_code import UserCode

COMPANION = 2**40
"""Added to the indices of companions, whose answers have randomness of their own."""


class PromptSource(ABC):
    """A data set of prompts.

    Attributes:
        rows: columns of each prompt, if all are in memory, for a check before training; else None.
        names: a text for each prompt, equal for equal prompts, if prompts have names without being read; else None.
        endless: indices beyond the length are new prompts of the same kind, drawn independently.
    """

    rows: Sequence[Mapping[str, Any]] | None = None
    names: Sequence[str] | None = None
    endless = False

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def groups(self, index: Tensor) -> PromptGroups:
        """The prompts at ``index [B]`` int64. The same index is always the same prompt."""


class PromptLoader:
    """Batches of prompts: each process gets a contiguous share of every batch.

    The batch's number and the seed determine its prompts, so that a resumed run continues exactly. Iteration ends with
    the pass.

    Args:
        batch_size: prompts per batch, over all processes.
        seed: shuffles every pass anew; None keeps the order.
        start: number of the first batch, counted over all passes.
        worker: make batches ahead in another process, see `made_ahead`; on Linux only.
        limit: a pass ends after that many batches, or that share of them, as Lightning's ``limit_train_batches`` ends
            its epochs.
    """

    def __init__(
        self,
        source: PromptSource,
        batch_size: int,
        seed: int | None = None,
        start: Callable[[], int] = lambda: 0,
        drop_last: bool = False,
        worker: bool = False,
        limit: float | None = None,
    ) -> None:
        self.source = source
        self.batch_size = batch_size
        self.seed = seed
        self.start = start
        self.worker = worker and AVAILABLE
        batches, rest = divmod(len(source), batch_size)
        self.batches = batches + bool(rest and not drop_last)
        if self.batches == 0:
            if not drop_last:
                raise UserError("Expected prompts to evaluate on, but got none.")
            raise UserError(
                f"Expected at least {batch_size} training prompts, for one update, but got {len(source)}, try a "
                "smaller data.prompts_per_update, or more prompts."
            )
        # Batches of a pass. The length stays the number without the limit, which Lightning itself takes off.
        self.of_a_pass = self.batches
        if isinstance(limit, int):
            self.of_a_pass = min(limit, self.batches)
        elif limit is not None:
            self.of_a_pass = int(limit * self.batches)

    def __len__(self) -> int:
        return self.batches

    def prompts(self, batches: float) -> int:
        """Number of prompts of this process in the first batches."""
        return sum(len(share) for number, share in enumerate(self._process_shares()) if number < batches)

    def state_dict(self) -> dict[str, Any]:
        """Empty: only marks the loader as resumable for Lightning; `start` gives the position."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...

    def __iter__(self) -> Iterator[PromptGroups]:
        if self.worker:
            yield from made_ahead(self._make_groups, self._process_shares())
        else:
            yield from map(self._make_groups, self._process_shares())

    def _make_groups(self, index: Tensor) -> PromptGroups:
        """The prompts at ``index [B]``, copied, with a cluster for each prompt of an endless source."""
        with UserCode(f"{type(self.source).__name__}.groups"):
            # A copy, because a callback may write into the batch, whose texts and images are the source's own.
            groups = copied(self.source.groups(index.clone()))
        if groups.clusters is None and is_endless(self.source):
            groups.clusters = [str(number) for number in groups.index.tolist()]
        return groups

    def _process_shares(self) -> Iterator[Tensor]:
        """Indices ``[B]`` of this process's share of every batch."""
        # The pass, and its first batch that is left.
        epoch, first = divmod(self.start(), max(self.of_a_pass, 1))
        # The order of the prompts in this pass.
        order = torch.arange(len(self.source))
        if self.seed is not None:
            draw = generator(self.seed, Stream.ORDER, epoch)
            order = torch.from_numpy(draw.permutation(len(self.source)))
        rank, processes = world()
        for batch in range(first, self.of_a_pass):
            index = order[batch * self.batch_size : (batch + 1) * self.batch_size]
            yield index.tensor_split(processes)[rank]


@dataclass(eq=False)
class PromptSubset(PromptSource):
    """The prompts `index` of a source; their groups keep the source's indices."""

    source: PromptSource
    index: Sequence[int]

    def __len__(self) -> int:
        return len(self.index)

    def groups(self, index: Tensor) -> PromptGroups:
        chosen = [self.index[number] for number in index.tolist()]
        return self.source.groups(torch.tensor(chosen, dtype=torch.int64))


class PairLoader(PromptLoader):
    """Batches of prompts, each with a prompt that accompanies it, such as the next frame of its scene.

    A batch has its share of the prompts, then their companions; each pair is one sample, see `PromptGroups.sample`.

    Args:
        companions: of each prompt of `source`, under the same number.
        batch_size: prompts of `source` per batch, over all processes.
        worker: see `PromptLoader`.
    """

    def __init__(self, source: PromptSource, companions: PromptSource, batch_size: int, worker: bool = False) -> None:
        super().__init__(source, batch_size, worker=worker)
        self.companions = companions

    def _process_shares(self) -> Iterator[Tensor]:
        for share in super()._process_shares():
            yield torch.cat([share, share])

    def _make_groups(self, index: Tensor) -> PromptGroups:
        """The prompts at the first half of ``index [2 B]``, then their companions, at the equal second half."""
        share = index[: len(index) // 2]
        prompts = super()._make_groups(share)
        with UserCode(f"{type(self.companions).__name__}.groups"):
            companions = copied(self.companions.groups(share.clone()))
        columns: dict[str, Any] = {}
        for name, column in prompts.columns.items():
            companion_column = companions.columns[name]
            if isinstance(column, Tensor):
                columns[name] = torch.cat([column, companion_column])
            else:
                columns[name] = [*column, *companion_column]
        numbers = torch.cat([prompts.index, companions.index + COMPANION])
        # A prompt and its companion are one sample, of one cluster.
        sample = torch.arange(len(share)).repeat(2)
        clusters = None if prompts.clusters is None else prompts.clusters * 2
        return PromptGroups(numbers, columns, sample, clusters)


def is_endless(source: PromptSource) -> bool:
    """True if each prompt is drawn independently of the others, and more can be drawn (`PromptSource.endless`)."""
    whole_source = source.source if isinstance(source, PromptSubset) else source
    return getattr(whole_source, "endless", False)  # a user's own source may be any class
