"""Attention for transformers: unchanged, except in a packed pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from lightning_cgrpo.policies.shared_prefix.cascade import repeated_heads, shared_attention
from lightning_cgrpo.policies.shared_prefix.layout import Layout
from lightning_cgrpo.policies.shared_prefix.varlen import Flash, packed_attention, runs_flash

NAME = "shared_prefix"


class Attend(Protocol):
    """Attention of a packed pass, passed through the model as the keyword argument `NAME`."""

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Attended values ``[S, H, D]`` from queries ``[S, H, D]``, keys and values ``[S, K, D]``."""


def no_mask(device: torch.device) -> Tensor:
    """A mask that packed passes ignore; four dimensions keep transformers from replacing it."""
    return torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device)


class UnsupportedAttentionError(Exception):
    """The model's attention has a feature that packed passes lack."""


def register() -> None:
    """Register `attention` with transformers under `NAME`."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    if NAME not in ALL_ATTENTION_FUNCTIONS.valid_keys():
        ALL_ATTENTION_FUNCTIONS.register(NAME, attention)
        ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, sdpa_mask)


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    shared_prefix: Attend | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attended values ``[1, S, H, D]`` from queries ``[1, H, S, D]``, keys and values ``[1, K, S, D]``."""
    if shared_prefix is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        attended, _ = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options
        )
        return attended, None
    # These options are None in plain attention.
    for name in ("sliding_window", "softcap", "s_aux", "position_bias"):
        if options.get(name) is not None:
            raise UnsupportedAttentionError(f"{type(module).__name__} has {name}")
    if value.shape[-1] != key.shape[-1]:
        raise UnsupportedAttentionError(f"{type(module).__name__} has values of another width than keys")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    layer = getattr(module, "layer_idx", None)
    if layer is None:
        raise UnsupportedAttentionError(f"{type(module).__name__} doesn't know the number of its layer")
    # Under autocast, rotations leave queries and keys in float32, but products use the values' dtype.
    q, k, v = (tensor.squeeze(0).transpose(0, 1).to(value.dtype) for tensor in (query, key, value))
    return shared_prefix(layer, q, k, v, scale)[None], None


@dataclass(eq=False)
class PackedAttention:
    """Causal attention of each prompt to itself, and of each answer to its prompt and itself."""

    layout: Layout

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        layout = self.layout
        cut = layout.prompt_tokens
        if runs_flash(query) and layout.answers is not None:
            return packed_attention(query, key, value, layout.spans, scale, Flash())
        q, k, v = (layout.prompts.pad(tensor[:cut]) for tensor in (query, key, value))  # [n, P, heads, D]
        to_prompt = layout.prompts.unpad(causal_attention(q, k, v, scale))
        if layout.answers is None:
            return to_prompt
        q, own_k, own_v = (layout.answers.pad(tensor[cut:]) for tensor in (query, key, value))  # [n, G, C, heads, D]
        attended = shared_attention(q, own_k, own_v, k, v, layout.prompt_bias(query.dtype), scale)
        return torch.cat([to_prompt, layout.answers.unpad(attended)])


def causal_attention(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """Attended values ``[n, P, H, D]`` from queries of this shape, keys and values ``[n, P, K, D]``."""
    q, k, v = (tensor.transpose(1, 2) for tensor in (query, key, value))
    if q.dtype == torch.float32 and q.device.type != "cpu":
        # In float32, a GPU has no kernel for fewer heads of keys, so PyTorch would keep all scores.
        k = repeated_heads(k, q.shape[1])
        v = repeated_heads(v, q.shape[1])
    gqa = q.shape[1] != k.shape[1]
    return scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=gqa).transpose(1, 2)
