"""Keys and values while answers are generated: the prompt's once, the answers' own in slots."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_cgrpo.shared_prefix.attention import causal_attention
from lightning_cgrpo.shared_prefix.layout import Layout

BLOCK = 64
"""Tokens by which the room for answers grows."""


@dataclass
class _Layer:
    """Args:
    prompt_key: ``[n, K, D, P]``, scaled.
    prompt_value: ``[n, K, P, D]``.
    key: ``[n G, K, room, D]``, scaled, and alike `value`.
    """

    prompt_key: Tensor
    prompt_value: Tensor
    key: Tensor
    value: Tensor


class Decoding:
    """Attention of a packed row of prompts first, then of one token of every answer at a time.

    Answers are in slots ``[n, G]``, all at the same step; `select` drops some.
    """

    def __init__(self, layout: Layout, group_size: int) -> None:
        self.layout, self.group_size = layout, group_size
        self.step = -1
        self.bias: Tensor | None = None
        self._layers: dict[int, _Layer] = {}

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        if self.step < 0:
            return self._read(layer, query, key, value, scale)
        return self._continue(self._layers[layer], query, key, value, scale)

    def _read(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        prompts = self.layout.prompts
        q, k, v = (prompts.pad(tensor) for tensor in (query, key, value))
        n, _, kinds, size = k.shape
        empty = k.new_empty(n * self.group_size, kinds, 0, size)
        self._layers[layer] = _Layer(
            (k * scale).permute(0, 2, 3, 1).contiguous(), v.transpose(1, 2).contiguous(), empty, empty.clone()
        )
        self.bias = self.layout.prompt_bias(query.dtype)
        return prompts.unpad(causal_attention(q, k, v, scale))

    def _continue(self, layer: _Layer, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        rows, heads, size = query.shape
        n, kinds, _, length = layer.prompt_key.shape
        step = self.step
        if step == layer.key.shape[2]:
            room = layer.key.new_empty(rows, kinds, BLOCK, size)
            layer.key, layer.value = torch.cat([layer.key, room], 2), torch.cat([layer.value, room], 2)
        layer.key[:, :, step] = key * scale
        layer.value[:, :, step] = value
        q = query.view(n, self.group_size, kinds, -1, size)
        share = heads // kinds
        # The queries of a prompt's answers, as if they were one answer's: [n, K, G R, D].
        folded = q.transpose(1, 2).reshape(n, kinds, -1, size)
        to_prompt = folded @ layer.prompt_key
        if self.bias is not None:
            to_prompt += self.bias
        to_own = query.view(rows, kinds, share, size) @ layer.key[:, :, : step + 1].mT
        # One softmax over both.
        scores = torch.cat([_unfold(to_prompt, rows, share), to_own], -1).softmax(-1)
        own = scores[..., length:] @ layer.value[:, :, : step + 1]
        of_prompt = scores[..., :length].view(n, self.group_size, kinds, share, length).transpose(1, 2)
        shared = of_prompt.reshape(n, kinds, -1, length) @ layer.prompt_value
        return (own + _unfold(shared, rows, share)).view(rows, heads, size)

    def select(self, prompts: Tensor, slots: Tensor, group_size: int) -> None:
        """Keep the answers ``slots [n' G']`` (numbers of rows) of the ``prompts [n']``."""
        for layer in self._layers.values():
            if len(prompts) < len(layer.prompt_key):
                layer.prompt_key, layer.prompt_value = layer.prompt_key[prompts], layer.prompt_value[prompts]
            layer.key, layer.value = layer.key[slots], layer.value[slots]
        if self.bias is not None:
            self.bias = self.bias[prompts]
        self.group_size = group_size


def _unfold(tensor: Tensor, rows: int, share: int) -> Tensor:
    """``[n G, K, R, …]`` of ``[n, K, G R, …]``."""
    n, kinds = tensor.shape[:2]
    parts = tensor.view(n, kinds, rows // n, share, -1).transpose(1, 2)
    return parts.reshape(rows, kinds, share, -1)
