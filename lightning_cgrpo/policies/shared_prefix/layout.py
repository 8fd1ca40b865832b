"""Layout of a packed row: all prompts, then all answers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_cgrpo.policies.shared_prefix.varlen import PackedSpans, Spans


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
        if self.positions is None:
            return flat
        return flat.index_select(0, self.positions)


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
    spans: PackedSpans  # the row without padding

    @classmethod
    def of(
        cls,
        prompt_lengths: Tensor,
        answer_lengths: Tensor,
        group: Tensor,
        prompt_positions: Tensor | None = None,
        device: torch.device | str = "cpu",
    ) -> Layout:
        """Arrange prompts and answers on a device.

        Args:
            prompt_lengths: ``[n]`` int64, at least 1; lengths and `group` are on the CPU, so that no shape waits for
                the device.
            answer_lengths: ``[N]`` int64, with the last token.
            group: ``[N]`` int64, index of each answer's prompt, ascending.
            prompt_positions: ``[A, S']`` position ids of all prompt tokens, on the device; by default 0, 1, 2, … per
                prompt.
        """

        def to_device(tensor: Tensor) -> Tensor:
            return tensor.to(device, non_blocking=True)

        # Of each token in the row: its number within its prompt or answer (offsets), and which prompt or answer.
        prompts = len(prompt_lengths)
        prompt_offsets = index_in_row(prompt_lengths)
        prompt_row = _row_of_element(prompt_lengths)
        total = len(prompt_offsets)
        fed = (answer_lengths - 1).clamp(min=0)  # tokens of each answer in the row
        answer_offsets = index_in_row(fed)
        of_answer = _row_of_element(fed)

        # The prompts as a rectangle.
        longest = int(prompt_lengths.max())
        cells = None  # of a rectangle with gaps
        mask = None
        if bool((prompt_lengths != longest).any()):
            cells = to_device(prompt_row * longest + prompt_offsets)
            mask = to_device(range_on_cpu(longest) < prompt_lengths[:, None])
        prompt_blocks = Blocks((prompts, longest), cells)

        # The answers as a block, with the groups padded to the largest.
        answer_blocks = None
        if len(answer_offsets):
            counts = torch.bincount(group, minlength=prompts)
            most = int(counts.max())
            steps = int(fed.max())
            column = index_in_row(counts)  # the answer's number within its group
            is_full = bool((counts == most).all()) and bool((fed == steps).all())
            cells = None
            if not is_full:
                cells = to_device((group * most + column)[of_answer] * steps + answer_offsets)
            answer_blocks = Blocks((prompts, most, steps), cells)

        # An answer continues the positions of its prompt.
        if prompt_positions is None:
            following = to_device(prompt_lengths)
            answer_positions = prompt_lengths[group][of_answer] + answer_offsets
            position_ids = to_device(torch.cat([prompt_offsets, answer_positions])[None])
        else:
            # The largest position of a prompt along any axis, and the next.
            last = prompt_positions.amax(0)
            rows = to_device(prompt_row)
            following = last.new_zeros(prompts).scatter_reduce(0, rows, last, "amax", include_self=False)
            following = following + 1
            answer_positions = following[to_device(group[of_answer])] + to_device(answer_offsets)
            position_ids = torch.cat([prompt_positions, answer_positions.expand(len(prompt_positions), -1)], 1)

        # The prompt's last token predicts the first token; each token predicts its successor.
        ends = prompt_lengths.cumsum(0) - 1
        starts = total + fed.cumsum(0) - fed
        step = index_in_row(answer_lengths)
        answer = _row_of_element(answer_lengths)
        predictors = torch.where(step == 0, ends[group][answer], starts[answer] + step - 1)
        return cls(
            prompts=prompt_blocks,
            answers=answer_blocks,
            prompt_tokens=total,
            position_ids=position_ids,
            following=following,
            predictors=to_device(predictors),
            prompt_mask=mask,
            spans=PackedSpans(
                every=Spans.of(torch.cat([prompt_lengths, fed]), device),
                prompts=Spans.of(prompt_lengths, device),
                of_prompt=Spans.of(fed.new_zeros(prompts).index_add(0, group, fed), device),
                prompt_tokens=total,
            ),
        )

    def prompt_bias(self, dtype: torch.dtype) -> Tensor | None:
        """``[n, 1, 1, P]``, minus infinity for padding, else 0; None if prompts are equally long."""
        if self.prompt_mask is None:
            return None
        bias = torch.zeros(self.prompt_mask.shape, dtype=dtype, device=self.prompt_mask.device)
        return bias.masked_fill_(~self.prompt_mask, -torch.inf)[:, None, None]


def unpadded(ids: Tensor, lengths: Tensor) -> Tensor:
    """Tokens ``[S]`` of prompts ``[n, P]``, one prompt after the other; `lengths` ``[n]`` are on the CPU."""
    width = ids.shape[1]
    places = (range_on_cpu(width) >= width - lengths[:, None]).flatten().nonzero()[:, 0]
    return ids.flatten()[places.to(ids.device, non_blocking=True)]


def range_on_cpu(count: int) -> Tensor:
    """0 to count - 1, on the CPU."""
    return torch.arange(count, device="cpu")  # also where the default device is another


def _row_of_element(lengths: Tensor) -> Tensor:
    return range_on_cpu(len(lengths)).repeat_interleave(lengths)


def index_in_row(lengths: Tensor) -> Tensor:
    """The number of each element within its row, for rows of these lengths one after the other."""
    starts = (lengths.cumsum(0) - lengths).repeat_interleave(lengths)
    return range_on_cpu(int(lengths.sum())) - starts
