"""Layout of a packed row: all prompts, then all answers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Blocks:
    """Converts rows of different lengths between a packed row and a padded rectangle."""

    shape: tuple[int, ...]  # of the rectangle, with the length of the longest row last
    positions: Tensor | None  # [S], index of each token in the flattened rectangle; None without padding

    def pad(self, tokens: Tensor) -> Tensor:
        rest = tokens.shape[1:]
        if self.positions is None:
            return tokens.reshape(*self.shape, *rest)
        size = torch.Size(self.shape).numel()
        return tokens.new_zeros(size, *rest).index_copy(0, self.positions, tokens).view(*self.shape, *rest)

    def unpad(self, rectangle: Tensor) -> Tensor:
        flat = rectangle.flatten(0, len(self.shape) - 1)
        return flat if self.positions is None else flat.index_select(0, self.positions)


@dataclass(frozen=True)
class Layout:
    """A packed row ``[prompt 0 | prompt 1 | … | answer 0 | answer 1 | …]`` of n prompts and N answers.

    The last token of an answer is left out, because it predicts nothing.
    """

    prompts: Blocks  # [n, P]
    answers: Blocks | None  # [n, G, C]; None if no answer has a token in the row
    prompt_tokens: int  # sum of the prompts' lengths
    position_ids: Tensor  # [A, S] along A axes; an answer continues its prompt's positions
    following: Tensor  # [n], the position after each prompt
    predictors: Tensor  # [M], tokens of the row that predict the answers' M tokens
    prompt_mask: Tensor | None  # [n, P] bool; None if prompts are equally long

    @classmethod
    def of(
        cls, prompt_lengths: Tensor, answer_lengths: Tensor, group: Tensor, prompt_positions: Tensor | None = None
    ) -> Layout:
        """Arrange prompts and answers.

        Args:
            prompt_lengths: ``[n]`` int64, at least 1.
            answer_lengths: ``[N]`` int64, with the last token.
            group: ``[N]`` int64, index of each answer's prompt, ascending.
            prompt_positions: ``[A, S']`` position ids of all prompt tokens; by default 0, 1, 2, … per prompt.
        """
        device = prompt_lengths.device
        prompts = len(prompt_lengths)
        prompt_offsets = _within(prompt_lengths)
        total = len(prompt_offsets)
        fed = (answer_lengths - 1).clamp(min=0)
        answer_offsets = _within(fed)
        of_answer = torch.arange(len(fed), device=device).repeat_interleave(fed)

        longest = int(prompt_lengths.max())
        ragged = bool((prompt_lengths != longest).any())
        prompt_row = torch.arange(prompts, device=device).repeat_interleave(prompt_lengths)
        mask = torch.arange(longest, device=device) < prompt_lengths[:, None] if ragged else None
        prompt_blocks = Blocks((prompts, longest), prompt_row * longest + prompt_offsets if ragged else None)

        answer_blocks = None
        if len(answer_offsets):
            counts = torch.bincount(group, minlength=prompts)
            most, steps = int(counts.max()), int(fed.max())
            column = _within(counts)  # the answer's number within its group
            full = bool((counts == most).all()) and bool((fed == steps).all())
            positions = (group * most + column)[of_answer] * steps + answer_offsets
            answer_blocks = Blocks((prompts, most, steps), None if full else positions)

        following = prompt_lengths
        if prompt_positions is not None:
            last = prompt_positions.amax(0)
            following = last.new_zeros(prompts).scatter_reduce(0, prompt_row, last, "amax", include_self=False) + 1
        axes = prompt_offsets[None] if prompt_positions is None else prompt_positions
        answer_positions = (following[group][of_answer] + answer_offsets).expand(len(axes), -1)

        # The prompt's last token predicts the first token; each token predicts its successor.
        ends = prompt_lengths.cumsum(0) - 1
        starts = total + fed.cumsum(0) - fed
        step = _within(answer_lengths)
        answer = torch.arange(len(fed), device=device).repeat_interleave(answer_lengths)
        return cls(
            prompts=prompt_blocks,
            answers=answer_blocks,
            prompt_tokens=total,
            position_ids=torch.cat([axes, answer_positions], 1),
            following=following,
            predictors=torch.where(step == 0, ends[group][answer], starts[answer] + step - 1),
            prompt_mask=mask,
        )

    def prompt_bias(self, dtype: torch.dtype) -> Tensor | None:
        """``[n, 1, 1, P]``, minus infinity for padding, else 0; None if prompts are equally long."""
        if self.prompt_mask is None:
            return None
        bias = torch.zeros(self.prompt_mask.shape, dtype=dtype, device=self.prompt_mask.device)
        return bias.masked_fill_(~self.prompt_mask, -torch.inf)[:, None, None]


def _within(lengths: Tensor) -> Tensor:
    total = int(lengths.sum())
    starts = (lengths.cumsum(0) - lengths).repeat_interleave(lengths)
    return torch.arange(total, device=lengths.device) - starts
