"""Attention of a packed row without padding, masks or repeated keys, by CUDA's flash kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

HALF = (torch.bfloat16, torch.float16)
AMPERE = 8
"""Least compute capability of the flash kernel."""
WIDEST = 256
"""Largest width of a head in the flash kernel."""


@dataclass(frozen=True)
class Spans:
    """Sequences in a packed row.

    Args:
        ends: ``[n + 1]`` int32, 0 and the end of each sequence.
        longest: tokens of the longest sequence.
    """

    ends: Tensor
    longest: int

    @classmethod
    def of(cls, lengths: Tensor, device: torch.device | str) -> Spans:
        """Sequences of these lengths ``[n]`` int64, on the CPU."""
        ends = pad(lengths.cumsum(0), (1, 0)).int()
        longest = int(lengths.max()) if len(lengths) else 0
        return cls(ends.to(device, non_blocking=True), longest)


@dataclass(frozen=True)
class Attends:
    """Sequences of queries that attend to as many sequences of keys."""

    queries: Spans
    keys: Spans
    causal: bool
    scale: float


class Kernel(Protocol):
    """Attention of queries ``[S, H, D]`` to keys and values ``[S', K, D]``."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, part: Attends) -> tuple[Tensor, Tensor]:
        """Attended values ``[S, H, D]`` and their normalizers (log-sum-exp) ``[H, S]``, at least float32."""

    def backward(
        self, gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, attended: Tensor, norm: Tensor, part: Attends
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of queries, keys and values; `attended` and `norm` are of all keys that a query attends to."""


class Flash:
    """CUDA's flash kernel, which `torch.nn.attention.varlen.varlen_attn` wraps without a backward pass of parts."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, part: Attends) -> tuple[Tensor, Tensor]:
        attended, norm, *_ = torch.ops.aten._flash_attention_forward(
            query, key, value, *_sequence_arguments(part), 0.0, part.causal, False, scale=part.scale
        )
        return attended, norm

    def backward(
        self, gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, attended: Tensor, norm: Tensor, part: Attends
    ) -> tuple[Tensor, Tensor, Tensor]:
        # The state of random numbers, which dropout alone reads.
        state = torch.zeros(2, dtype=torch.uint64, device=query.device)
        unused = query.new_empty(0)
        tensors = gradient, query, key, value, attended, norm
        return torch.ops.aten._flash_attention_backward(
            *tensors, *_sequence_arguments(part), 0.0, part.causal, state, unused, scale=part.scale
        )


def _sequence_arguments(part: Attends) -> tuple[Tensor, Tensor, int, int]:
    return part.queries.ends, part.keys.ends, part.queries.longest, part.keys.longest


def runs_flash(query: Tensor) -> bool:
    """Check that the flash kernel takes queries ``[S, H, D]`` of this device, dtype and width."""
    if query.device.type != "cuda" or query.dtype not in HALF:
        return False
    width = query.shape[-1]
    return width <= WIDEST and width % 8 == 0 and torch.cuda.get_device_capability(query.device)[0] >= AMPERE


@dataclass(frozen=True)
class PackedSpans:
    """Sequences of a packed row: n prompts, then N answers in the order of their prompts."""

    every: Spans  # prompts and answers
    prompts: Spans
    of_prompt: Spans  # a prompt's answers, as one sequence
    prompt_tokens: int


def packed_attention(
    query: Tensor, key: Tensor, value: Tensor, spans: PackedSpans, scale: float, kernel: Kernel
) -> Tensor:
    """Attended values ``[S, H, D]``: each prompt is causal; an answer attends to its prompt, and causally to itself.

    Args:
        query: ``[S, H, D]``; `key` and `value` have K heads for H.
    """
    return _Packed.apply(query, key, value, spans, scale, kernel)


class _Packed(torch.autograd.Function):
    """Every sequence attends to itself in one call of the kernel, and answers to their prompts in another.

    An answer's two parts are merged and differentiated as in `cascade.shared_attention`. Results are written in place
    into those of the first call, because a short pass waits for the launches of kernels.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, spans: PackedSpans, scale: float, kernel: Kernel
    ) -> Tensor:
        cut = spans.prompt_tokens
        own, across = _attended_parts(spans, scale)
        attended, norm = kernel.forward(query, key, value, own)  # [S, H, D], [H, S]
        shared, shared_norm = kernel.forward(query[cut:], key[:cut], value[:cut], across)
        # exp(own norm) / (exp(own norm) + exp(shared norm)) of each answer's token
        own_share = (norm[:, cut:] - shared_norm).sigmoid_().T[..., None]  # [S', H, 1]
        answers = attended[cut:]
        torch.addcmul(answers * own_share, shared, 1 - own_share, out=answers)
        answer_norm = torch.logaddexp(norm[:, cut:], shared_norm)
        norm[:, cut:] = answer_norm
        ctx.save_for_backward(query, key, value, attended, norm, answer_norm)
        ctx.cut = cut
        ctx.parts = (own, across)
        ctx.kernel = kernel
        return attended

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, attended, norm, answer_norm = ctx.saved_tensors
        own, across = ctx.parts
        cut = ctx.cut
        gradient = gradient.contiguous()
        of_query, of_key, of_value = ctx.kernel.backward(gradient, query, key, value, attended, norm, own)
        shared_of_query, shared_of_key, shared_of_value = ctx.kernel.backward(
            gradient[cut:], query[cut:], key[:cut], value[:cut], attended[cut:], answer_norm, across
        )
        of_query[cut:].add_(shared_of_query)
        of_key[:cut].add_(shared_of_key)
        of_value[:cut].add_(shared_of_value)
        return of_query, of_key, of_value, None, None, None


def _attended_parts(spans: PackedSpans, scale: float) -> tuple[Attends, Attends]:
    """The attention of all sequences to themselves, and of answers to their prompts."""
    own = Attends(spans.every, spans.every, causal=True, scale=scale)
    across = Attends(spans.of_prompt, spans.prompts, causal=False, scale=scale)
    return own, across
