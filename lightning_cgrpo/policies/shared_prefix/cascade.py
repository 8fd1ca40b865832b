"""Attention of answers to one copy of their prompt, and to themselves."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import scaled_dot_product_attention

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward

# Shapes: n prompts, G answers, C tokens of an answer, P of a prompt; H heads of queries, K of keys, R = H / K, width D.


def shared_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    prompt_key: Tensor,
    prompt_value: Tensor,
    bias: Tensor | None,
    scale: float,
) -> Tensor:
    """Causal attention ``[n, G, C, H, D]`` of answers that follow their prompt.

    Args:
        query: ``[n, G, C, H, D]``; `key` and `value` have K heads for H.
        prompt_key: ``[n, P, K, D]``, like `prompt_value`.
        bias: ``[n, 1, 1, P]``, minus infinity for padding, else 0.
    """
    if query.device.type == "cpu":
        return _Cascade.apply(query, key, value, prompt_key, prompt_value, bias, scale)
    return _expanded_attention(query, key, value, prompt_key, prompt_value, bias, scale)


def _expanded_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    prompt_key: Tensor,
    prompt_value: Tensor,
    bias: Tensor | None,
    scale: float,
) -> Tensor:
    """`shared_attention` with the prompt repeated per answer, for any backend.

    Heads of keys and values are repeated, because a GPU has no kernel for a mask with fewer of them: PyTorch would
    compute all scores in float32 and keep them.
    """
    n, answers, steps, heads = query.shape[:4]
    size = prompt_key.shape[1]

    def whole_rows(prompt: Tensor, own: Tensor) -> Tensor:  # [n G, H, P + C, D]
        copies = prompt[:, None].expand(-1, answers, -1, -1, -1)  # [n, G, P, K, D]
        rows = torch.cat([copies, own], 2).flatten(0, 1).transpose(1, 2)
        return repeated_heads(rows, heads)

    seen = torch.ones(steps, size + steps, dtype=torch.bool, device=query.device).tril(size)
    if bias is not None:
        inside = torch.cat([bias[:, 0] == 0, bias.new_ones(n, 1, steps, dtype=torch.bool)], 2)  # [n, 1, P + C]
        seen = (seen & inside).repeat_interleave(answers, 0)[:, None]
    attended: Tensor = scaled_dot_product_attention(
        query.flatten(0, 1).transpose(1, 2),
        whole_rows(prompt_key, key),
        whole_rows(prompt_value, value),
        attn_mask=seen,
        scale=scale,
    )
    return attended.transpose(1, 2).unflatten(0, (n, answers))


class _Cascade(torch.autograd.Function):
    """Attention to the prompt and to the answer by the CPU's flash kernel, merged by their normalizers.

    With output o_b and log-sum-exp l_b of block b, the attention over both blocks is sum_b exp(l_b - l) o_b with
    l = log sum_b exp(l_b). Given the merged output and l, the backward pass of flash attention is exact for each block
    (ring attention, Liu et al., 2023).
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        prompt_key: Tensor,
        prompt_value: Tensor,
        bias: Tensor | None,
        scale: float,
    ) -> Tensor:
        n, answers, steps, heads, _ = query.shape
        # Each answer attends to itself.
        q = query.flatten(0, 1).transpose(1, 2)  # [n G, H, C, D]
        own, own_norm = _flash(q, _repeated_heads(key, heads), _repeated_heads(value, heads), 0.0, True, scale=scale)
        own_norm = own_norm.transpose(1, 2).reshape(n, answers, steps, heads)
        # All answers attend to their prompt in one call.
        folded = _fold_queries(query, key.shape[3])
        keys = prompt_key.transpose(1, 2)  # [n, K, P, D]
        values = prompt_value.transpose(1, 2)
        shared, shared_norm = _flash(folded, keys, values, attn_mask=_expanded_bias(bias, folded), scale=scale)
        shared_norm = _unfold_queries(shared_norm[..., None], query.shape)[..., 0]  # [n, G, C, H]
        # Both are merged by their normalizers.
        norm = torch.logaddexp(own_norm, shared_norm)
        own_share = (own_norm - norm).exp()[..., None].to(own.dtype)  # [n, G, C, H, 1]
        shared_share = (shared_norm - norm).exp()[..., None].to(own.dtype)
        attended: Tensor = own.transpose(1, 2).reshape(query.shape) * own_share
        attended += _unfold_queries(shared, query.shape) * shared_share
        ctx.save_for_backward(query, key, value, prompt_key, prompt_value, bias, attended, norm)
        ctx.scale = scale
        return attended

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, prompt_key, prompt_value, bias, attended, norm = ctx.saved_tensors
        heads = query.shape[3]
        key_heads = key.shape[3]

        def rows(tensor: Tensor) -> Tensor:  # [n, G, C, H, D] -> [n G, H, C, D]
            return tensor.flatten(0, 1).transpose(1, 2).contiguous()

        def of_key_heads(gradient: Tensor) -> Tensor:  # [n G, H, C, D] -> [n, G, C, K, D], summed over the R heads
            by_key_head: Tensor = gradient.transpose(1, 2).unflatten(2, (key_heads, -1))
            return by_key_head.sum(3).reshape(key.shape)

        # The answers' attention to themselves.
        of_query, of_key, of_value = _flash_backward(
            rows(grad),
            rows(query),
            _repeated_heads(key, heads),
            _repeated_heads(value, heads),
            rows(attended),
            rows(norm[..., None])[..., 0],
            0.0,
            True,
            scale=ctx.scale,
        )
        # Their attention to the prompt.
        folded = _fold_queries(query, key_heads)
        of_folded, of_prompt_key, of_prompt_value = _flash_backward(
            _fold_queries(grad, key_heads),
            folded,
            prompt_key.transpose(1, 2),
            prompt_value.transpose(1, 2),
            _fold_queries(attended, key_heads),
            _fold_queries(norm[..., None], key_heads)[..., 0],
            0.0,
            False,
            attn_mask=_expanded_bias(bias, folded),
            scale=ctx.scale,
        )
        of_query = of_query.transpose(1, 2).reshape(query.shape) + _unfold_queries(of_folded, query.shape)
        return (
            of_query,
            of_key_heads(of_key),
            of_key_heads(of_value),
            of_prompt_key.transpose(1, 2),
            of_prompt_value.transpose(1, 2),
            None,
            None,
        )


def _fold_queries(tensor: Tensor, key_heads: int) -> Tensor:
    """``[n, K, G C R, D]`` from ``[n, G, C, H, D]``: all queries of a prompt and a key's head, as one sequence."""
    parts: Tensor = tensor.flatten(1, 2).unflatten(2, (key_heads, -1))  # [n, G C, K, R, D]
    return parts.permute(0, 2, 1, 3, 4).flatten(2, 3)


def _unfold_queries(tensor: Tensor, shape: torch.Size) -> Tensor:
    """Undo `_fold_queries` for queries of this shape; D may be another width."""
    n, answers, steps, heads, _ = shape
    key_heads = tensor.shape[1]
    parts: Tensor = tensor.unflatten(2, (answers * steps, heads // key_heads)).permute(0, 2, 1, 3, 4)
    return parts.reshape(n, answers, steps, heads, tensor.shape[-1])


def _repeated_heads(own: Tensor, heads: int) -> Tensor:
    """Keys or values ``[n G, H, C, D]`` from ``[n, G, C, K, D]``."""
    return repeated_heads(own.flatten(0, 1).transpose(1, 2), heads)


def repeated_heads(rows: Tensor, heads: int) -> Tensor:
    """Keys or values ``[N, H, S, D]`` from ``[N, K, S, D]``."""
    if rows.shape[1] == heads:
        return rows
    return rows.repeat_interleave(heads // rows.shape[1], 1)


def _expanded_bias(bias: Tensor | None, queries: Tensor) -> Tensor | None:
    """The bias ``[n, 1, S, P]`` of S folded queries, without a copy."""
    return None if bias is None else bias.expand(-1, -1, queries.shape[2], -1)
