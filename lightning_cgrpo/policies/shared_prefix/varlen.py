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
        return cls(ends.to(device, non_blocking=True), int(lengths.max()) if len(lengths) else 0)


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
            query, key, value, *_sequences(part), 0.0, part.causal, False, scale=part.scale
        )
        return attended, norm

    def backward(
        self, gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, attended: Tensor, norm: Tensor, part: Attends
    ) -> tuple[Tensor, Tensor, Tensor]:
        # The state of random numbers, which dropout alone reads.
        state, unused = torch.zeros(2, dtype=torch.uint64, device=query.device), query.new_empty(0)
        tensors = gradient, query, key, value, attended, norm
        return torch.ops.aten._flash_attention_backward(
            *tensors, *_sequences(part), 0.0, part.causal, state, unused, scale=part.scale
        )


def _sequences(part: Attends) -> tuple[Tensor, Tensor, int, int]:
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

    prompts: Spans
    answers: Spans
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
    """An answer's two parts are merged and differentiated as in `cascade.shared_attention`.

    Below, q, k and v are of the prompts; `own_q`, `own_k` and `own_v` are of the answers.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, spans: PackedSpans, scale: float, kernel: Kernel
    ) -> Tensor:
        parts = _parts(spans, scale)
        of_prompts, of_answers, across = parts
        q, own_q = _cut(query, spans)
        k, own_k = _cut(key, spans)
        v, own_v = _cut(value, spans)
        to_prompt, prompt_norm = kernel.forward(q, k, v, of_prompts)
        own, own_norm = kernel.forward(own_q, own_k, own_v, of_answers)
        shared, shared_norm = kernel.forward(own_q, k, v, across)
        norm = torch.logaddexp(own_norm, shared_norm)

        def share(part: Tensor) -> Tensor:  # [H, S] -> [S, H, 1]
            return (part - norm).exp().T[..., None]

        merged = own * share(own_norm) + shared * share(shared_norm)
        attended = torch.cat([to_prompt, merged.to(query.dtype)])
        ctx.save_for_backward(query, key, value, attended, prompt_norm, norm)
        ctx.spans, ctx.parts, ctx.kernel = spans, parts, kernel
        return attended

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, attended, prompt_norm, norm = ctx.saved_tensors
        of_prompts, of_answers, across = ctx.parts
        g, own_g = _cut(gradient.contiguous(), ctx.spans)
        q, own_q = _cut(query, ctx.spans)
        k, own_k = _cut(key, ctx.spans)
        v, own_v = _cut(value, ctx.spans)
        to_prompt, merged = _cut(attended, ctx.spans)
        of_q, of_k, of_v = ctx.kernel.backward(g, q, k, v, to_prompt, prompt_norm, of_prompts)
        own = ctx.kernel.backward(own_g, own_q, own_k, own_v, merged, norm, of_answers)
        shared = ctx.kernel.backward(own_g, own_q, k, v, merged, norm, across)
        own_of_q, own_of_k, own_of_v = own
        shared_of_q, shared_of_k, shared_of_v = shared
        of_query = torch.cat([of_q, own_of_q + shared_of_q])
        of_key = torch.cat([of_k + shared_of_k, own_of_k])
        of_value = torch.cat([of_v + shared_of_v, own_of_v])
        return of_query, of_key, of_value, None, None, None


def _parts(spans: PackedSpans, scale: float) -> tuple[Attends, Attends, Attends]:
    return (
        Attends(spans.prompts, spans.prompts, True, scale),
        Attends(spans.answers, spans.answers, True, scale),
        Attends(spans.of_prompt, spans.prompts, False, scale),
    )


def _cut(tensor: Tensor, spans: PackedSpans) -> tuple[Tensor, Tensor]:
    """The prompts' part and the answers' part of a packed row."""
    return tensor[: spans.prompt_tokens], tensor[spans.prompt_tokens :]
