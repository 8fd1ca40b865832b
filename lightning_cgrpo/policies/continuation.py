"""Next-token logits of growing answers: with shared prompts, in padded rows, or prompt by prompt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from lightning_cgrpo.policies.padded_prompts import PaddedPrompts, without_text
from lightning_cgrpo.policies.shared_prefix.attention import Attend
from lightning_cgrpo.policies.shared_prefix.decoding import Decoding
from lightning_cgrpo.policies.shared_prefix.fewer_kernels import FewerKernels
from lightning_cgrpo.policies.shared_prefix.layout import Layout, unpadded


class Continuation(Protocol):
    """G answers to each of B prompts, which grow by a token at a time."""

    def read(self) -> Tensor:
        """Logits ``[B, V]`` after the prompts."""

    def next(self, kept: Tensor | None, tokens: Tensor) -> Tensor:
        """Append ``tokens [R]`` to R answers, and return the next logits ``[R, V]``.

        Args:
            kept: ascending rows ``[R]`` of the last call that go on, on the CPU; None for all.
        """


@dataclass(frozen=True)
class PromptBatch:
    """B prompts that get G answers each."""

    inputs: dict[str, Tensor]  # from `CausalLMPolicy.read_prompts`, on the policy's device
    lengths: Tensor  # [B] of the prompts, on the CPU
    limits: Tensor  # [B] most tokens of each prompt's answers, on the CPU
    group_size: int

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def answers(self) -> int:
        """The number of all answers."""
        return len(self) * self.group_size

    @property
    def longest(self) -> int:
        """Most tokens of an answer."""
        return int(self.limits.max())

    def part(self, rows: slice | Tensor) -> PromptBatch:
        """The prompts at `rows`; a tensor of rows is on the CPU."""
        there = rows
        if isinstance(rows, Tensor):
            there = rows.to(self.inputs["prompt_ids"].device, non_blocking=True)
        inputs = {name: tensor[there] for name, tensor in self.inputs.items()}
        return PromptBatch(inputs, self.lengths[rows], self.limits[rows], self.group_size)

    def in_dtype(self, dtype: torch.dtype) -> PromptBatch:
        """With images in the dtype of the weights; tokens and masks as they are."""
        inputs = dict(self.inputs)
        for name, tensor in inputs.items():
            if tensor.is_floating_point():
                inputs[name] = tensor.to(dtype)
        return replace(self, inputs=inputs)


# The policy of all classes below is a `CausalLMPolicy`, which imports this file.


@dataclass(frozen=True)
class PromptRow:
    """A packed row of prompts, with one copy of each."""

    tokens: Tensor  # [S]
    ends: Tensor  # [B], places of the prompts' last tokens
    layout: Layout
    images: Mapping[str, Tensor]

    @classmethod
    def of(cls, policy: Any, inputs: Mapping[str, Tensor], lengths: Tensor) -> PromptRow:
        """The row of B prompts; arguments as of `CausalLMPolicy.continuation`."""
        tokens = unpadded(inputs["prompt_ids"], lengths)
        images = without_text(inputs)
        positions = policy.prompt_positions(tokens, lengths, images)
        no_answers = lengths[:0]
        layout = Layout.of(lengths, no_answers, no_answers, positions, policy.device)
        ends = (lengths.cumsum(0) - 1).to(policy.device, non_blocking=True)
        return cls(tokens, ends, layout, images)

    def read(self, policy: Any, attend: Attend) -> Tensor:
        """Logits ``[B, V]`` after the prompts; `attend` keeps their keys and values."""
        hidden = policy.hidden(self.tokens, self.layout.position_ids, attend, self.images)
        logits: Tensor = policy.network.get_output_embeddings()(hidden[self.ends])
        return logits


class SharedContinuation:
    """One copy of each prompt's keys and values."""

    def __init__(self, policy: Any, prompts: PromptBatch) -> None:
        self.policy = policy
        self.kernels = FewerKernels(policy.network)
        self.output = policy.network.get_output_embeddings()
        self.prompts = PromptRow.of(policy, prompts.inputs, prompts.lengths)
        layout = self.prompts.layout
        # The last token is never read.
        self.decoding = Decoding(layout, prompts.lengths, prompts.group_size, prompts.longest - 1)
        self.positions = layout.following.repeat_interleave(prompts.group_size) - 1

    def read(self) -> Tensor:
        return self.prompts.read(self.policy, self.decoding)

    def next(self, kept: Tensor | None, tokens: Tensor) -> Tensor:
        if kept is not None:
            self.decoding.keep(kept)
            self.positions = self.positions[kept.to(self.positions.device, non_blocking=True)]
        self.decoding.advance()
        self.positions += 1
        with self.kernels.used():
            hidden = self.policy.hidden(tokens, self.positions[None], self.decoding)
        logits: Tensor = self.output(hidden)
        return logits

    def join(self, other: SharedContinuation) -> Tensor:
        """Append another's prompts, of which nothing is read yet, and return the logits ``[B', V]`` after them."""
        logits = other.read()
        self.decoding.join(other.decoding)
        self.positions = torch.cat([self.positions, other.positions])
        return logits


class PaddedContinuation:
    """Transformers' cache, with a copy of the prompt for each answer; without a cache, each token reads the whole row.

    Columns that are padding in all rows are left out.
    """

    def __init__(self, policy: Any, prompts: PromptBatch) -> None:
        self.policy = policy
        self.group_size = prompts.group_size
        inputs = prompts.inputs
        width = int(prompts.lengths.max())
        self.ids = inputs["prompt_ids"][:, -width:]
        self.mask = inputs["prompt_mask"][:, -width:]
        self.cache = policy.new_cache()
        self.prompts = PaddedPrompts.of(inputs, torch.arange(len(self.ids), device="cpu"), width)
        self.positions = policy.row_positions(self.ids, self.mask, self.prompts)

    def read(self) -> Tensor:
        logits = self._next_logits(self.ids, self.prompts)
        # The axes have different positions in an image.
        last = self.positions.amax(-1).view(-1, len(self.ids)).amax(0)
        self.positions = last[:, None]
        self._select_rows(torch.arange(len(self.ids), device=self.ids.device).repeat_interleave(self.group_size))
        return logits

    def next(self, kept: Tensor | None, tokens: Tensor) -> Tensor:
        if kept is not None:
            self._select_rows(kept.to(self.mask.device, non_blocking=True))
        self.mask = torch.cat([self.mask, self.mask.new_ones(len(tokens), 1)], 1)
        self.positions = self.positions + 1
        if self.cache is not None:
            return self._next_logits(tokens[:, None])
        self.ids = torch.cat([self.ids, tokens[:, None]], 1)
        self.positions = self.policy.row_positions(self.ids, self.mask, None)
        return self._next_logits(self.ids)

    def _next_logits(self, ids: Tensor, prompts: PaddedPrompts | None = None) -> Tensor:
        logits: Tensor = self.policy.logits(ids, self.mask, 1, self.cache, self.positions, prompts)
        return logits[:, 0]

    def _select_rows(self, rows: Tensor) -> None:
        self.ids = self.ids[rows]
        self.mask = self.mask[rows]
        self.positions = self.positions[rows]
        if self.cache is not None:
            self.cache.reorder_cache(rows)


class SingleContinuation:
    """Each prompt with its answers in rows of its own, which have no padding."""

    def __init__(self, policy: Any, prompts: PromptBatch) -> None:
        self.parts = []
        for row in range(len(prompts)):
            prompt = prompts.part(slice(row, row + 1))
            self.parts.append(PaddedContinuation(policy, prompt))
        self.sizes = [prompts.group_size] * len(prompts)  # answers of each part that go on

    def read(self) -> Tensor:
        return torch.cat([part.read() for part in self.parts])

    def next(self, kept: Tensor | None, tokens: Tensor) -> Tensor:
        rows: list[Tensor | None] = [None] * len(self.parts)
        if kept is not None:
            # Each row of the last call belongs to the part whose answers include its number.
            counts = torch.tensor(self.sizes, device="cpu")
            ends = counts.cumsum(0)
            part_of_row = torch.bucketize(kept, ends, right=True)
            # Parts without a kept row are dropped; the others get their rows counted from their first answer.
            going_on, sizes = part_of_row.unique(return_counts=True)
            self.parts = [self.parts[number] for number in going_on.tolist()]
            self.sizes = sizes.tolist()
            rows = list((kept - (ends - counts)[part_of_row]).split(self.sizes))
        logits = []
        for part, part_rows, part_tokens in zip(self.parts, rows, tokens.split(self.sizes), strict=True):
            logits.append(part.next(part_rows, part_tokens))
        return torch.cat(logits)
