"""The prompts of a look: those that neither trained nor selected a policy, and that no earlier look saw."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.prompts.fingerprints import identities, number_of
from lightning_cgrpo.core.prompts.source import PairLoader, PromptLoader, PromptSource, PromptSubset
from lightning_cgrpo.core.randomness import Stream, generator
from lightning_cgrpo.run.fingerprints import source_fingerprints
from lightning_cgrpo.run.looks import Used


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


def new_prompts(source: PromptSource, count: int | None, used: Used) -> Certification:
    """The next prompts of an endless source, after the test prompts and those of earlier looks."""
    total = len(source)
    if count is None:
        count = total
    first = max(total, used.new_until)  # the number of test prompts may differ from that of earlier looks
    new = PromptSubset(source, range(first, first + count))
    return Certification(new, f"{count:,} new prompts", new_until=first + count)


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
        return " and".join(f" without {number:,} {reason}" for reason, number in self.numbers.items() if number)


class LookPrompts:
    """Chooses the prompts of looks from a finite number of test prompts.

    Args:
        batch_size: prompts that are read at once.
    """

    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size
        # Of test prompts by index, because reading images takes long.
        self._identities: dict[int, float] = {}
        self._clusters: dict[int, float] = {}

    def choose(
        self, source: PromptSource, others: Sequence[PromptSource], count: int | None, used: Used, seed: int
    ) -> Certification:
        """A random part of the test prompts that a look may show.

        Args:
            source: the test prompts, the same in each call.
            others: training and validation prompts that may be test prompts, too.
            count: number of prompts; None for all that a look may show.
            used: prompts of the run and of earlier looks.
            seed: of the choice.

        Raises:
            UserError: there are too few.
        """
        unused = self._find_unused(source, others, used)
        left = len(unused.indices)
        too_few = count is not None and count > left
        if not left or too_few:
            advice = f"--prompts {left}, or more test prompts" if left else "other test prompts"
            raise UserError(
                f"Expected {count or 'some'} different prompts that neither trained nor validated, but got "
                f"{left}, of {len(source)} test prompts{unused.left_out}, try {advice}."
            )
        chosen = list(unused.indices)  # identities
        words = f"the {left:,} test prompts{unused.left_out}"
        if count is not None and count < left:
            drawn = generator(seed, Stream.CERTIFY, len(source)).permutation(left)[:count]
            chosen = [chosen[number] for number in drawn]
            words = f"{count:,} of {len(source):,} test prompts{unused.left_out}"
        indices = [unused.indices[identity] for identity in chosen]
        clusters = [self._clusters[index] for index in indices] if self._clusters else None
        return Certification(PromptSubset(source, indices), words, identities=chosen, clusters=clusters)

    def _find_unused(self, source: PromptSource, others: Sequence[PromptSource], used: Used) -> _Unused:
        """The different test prompts that neither the run nor an earlier look used."""
        # Leave out the prompts that the run used, and count each under its first use.
        numbers: dict[str, int] = {}
        used_indices: set[int] = set()
        for use, indices in _indices_by_use(source, others, used):
            numbers[use] = len(indices - used_indices)
            used_indices |= indices
        unused_indices = [index for index in range(len(source)) if index not in used_indices]

        # Leave out repeats, and prompts that earlier looks saw.
        first_indices = self._first_indices(source, unused_indices)
        looked_at = used.looked & first_indices.keys()
        numbers["repeats"] = len(unused_indices) - len(first_indices)
        numbers["that earlier looks saw"] = len(looked_at)
        remaining = {identity: index for identity, index in first_indices.items() if identity not in looked_at}
        return _Unused(remaining, numbers)

    def _first_indices(self, source: PromptSource, indices: Sequence[int]) -> dict[float, int]:
        """The first index of each prompt by its identity, because repeats of a prompt are no further evidence."""
        unread = [index for index in indices if index not in self._identities]
        for start in range(0, len(unread), self.batch_size):
            batch = unread[start : start + self.batch_size]
            groups = source.groups(torch.tensor(batch))
            self._identities |= zip(batch, identities(groups).tolist(), strict=True)
            if groups.clusters is not None:
                self._clusters |= zip(batch, map(number_of, groups.clusters), strict=True)
        first_indices: dict[float, int] = {}
        for index in indices:
            first_indices.setdefault(self._identities[index], index)
        return first_indices


def _indices_by_use(source: PromptSource, others: Sequence[PromptSource], used: Used) -> Iterator[tuple[str, set[int]]]:
    """Indices of the test prompts that the run used, by words for the use."""
    fingerprints = source_fingerprints(source) if used.run else None
    if fingerprints is not None:
        for use, used_fingerprints in used.run.items():
            yield use, _indices_among(fingerprints[:, 1], used_fingerprints)
    yield "that trained or validated", _shared_indices(source, others)


def _shared_indices(source: PromptSource, others: Sequence[PromptSource]) -> set[int]:
    """Indices of test prompts that are training or validation prompts, too."""
    fingerprints = source_fingerprints(source)
    shared: set[int] = set()
    for other in others:
        other_fingerprints = source_fingerprints(other)
        if fingerprints is not None and other_fingerprints is not None:
            shared |= _indices_among(fingerprints[:, 1], other_fingerprints[:, 1])
    return shared


def _indices_among(fingerprints: Tensor, others: Tensor) -> set[int]:
    """Indices of the fingerprints that are among `others`."""
    return set(torch.isin(fingerprints, others).nonzero().flatten().tolist())
