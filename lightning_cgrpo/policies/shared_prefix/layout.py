"""Where what is in a packed row: every prompt once, then the answers, one after the other."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Blocks:
    """Rows of different lengths, one after the other, and as a rectangle for attention.

    Args:
        shape: of the rectangle, the longest row last.
        positions: ``[S]`` where each token is in the flattened rectangle; None if there is no padding, and the two are
            the same.
    """

    shape: tuple[int, ...]
    positions: Tensor | None

    def pad(self, tokens: Tensor) -> Tensor:
        """``[*shape, ...]`` of ``[S, ...]``, zeros where no token is."""
        rest = tokens.shape[1:]
        if self.positions is None:
            return tokens.reshape(*self.shape, *rest)
        size = torch.Size(self.shape).numel()
        return tokens.new_zeros(size, *rest).index_copy(0, self.positions, tokens).view(*self.shape, *rest)

    def unpad(self, rectangle: Tensor) -> Tensor:
        """``[S, ...]`` of ``[*shape, ...]``."""
        flat = rectangle.flatten(0, len(self.shape) - 1)
        return flat if self.positions is None else flat.index_select(0, self.positions)


@dataclass(frozen=True)
class Layout:
    """A packed row ``[prompt 0 | prompt 1 | … | answer 0 | answer 1 | …]`` of n prompts and N answers, in this order.

    An answer's last token is not in it: nothing is predicted from it.

    Args:
        prompts: ``[n, P]``.
        answers: ``[n, G, C]``, G the most answers of a prompt; None if no answer has a token here.
        prompt_tokens: how many there are.
        position_ids: ``[A, S]`` along the A axes that the model's positions have, every answer's following those of its
            prompt.
        following: ``[n]``, the position after each prompt.
        predictors: ``[M]`` the tokens whose hidden states predict the M tokens of the answers, in their order.
        prompt_mask: ``[n, P]`` bool, None if all are.
    """

    prompts: Blocks
    answers: Blocks | None
    prompt_tokens: int
    position_ids: Tensor
    following: Tensor
    predictors: Tensor
    prompt_mask: Tensor | None

    @classmethod
    def of(
        cls, prompt_lengths: Tensor, answer_lengths: Tensor, group: Tensor, prompt_positions: Tensor | None = None
    ) -> Layout:
        """From lengths.

        Args:
            prompt_lengths: ``[n]`` int64, at least 1.
            answer_lengths: ``[N]`` int64, with the last token.
            group: ``[N]`` int64, each answer's prompt, ascending.
            prompt_positions: ``[A, S']`` of the prompts' tokens, where they aren't 0, 1, 2, …; answers begin after the
                largest.
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

        # The first token is predicted from the prompt's last one, the others from their predecessors.
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
        """``[n, 1, 1, P]``, minus infinity where a shorter prompt has no token; None if all are of one length."""
        if self.prompt_mask is None:
            return None
        bias = torch.zeros(self.prompt_mask.shape, dtype=dtype, device=self.prompt_mask.device)
        return bias.masked_fill_(~self.prompt_mask, -torch.inf)[:, None, None]


def _within(lengths: Tensor) -> Tensor:
    """0 … length - 1 for every length, one after the other."""
    total = int(lengths.sum())
    starts = (lengths.cumsum(0) - lengths).repeat_interleave(lengths)
    return torch.arange(total, device=lengths.device) - starts
