"""Keys and values during generation: once per prompt, and once per answer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_cgrpo.policies.shared_prefix.attention import causal_attention
from lightning_cgrpo.policies.shared_prefix.layout import Blocks, Layout

ROOM = 64
"""Tokens per allocation of keys and values."""
CROWDED = 0.75
"""Largest share of prompts with running answers at which the other prompts are dropped."""


@dataclass
class _Layer:
    """Cached keys and values of a layer; keys are multiplied by the attention's scale."""

    prompt_key: Tensor  # [n, K, D, P]
    prompt_value: Tensor  # [n, K, P, D]
    key: Tensor  # [R, K, room, D]
    value: Tensor  # [R, K, room, D]


class Decoding:
    """`Attend` for generation: a packed row of prompts (`step` is -1), then R answers token by token."""

    def __init__(self, layout: Layout, group_size: int) -> None:
        self.layout = layout
        self.step = -1
        prompts = layout.prompts.shape[0]
        # On the CPU, so that no shape waits for the device.
        self.prompt = torch.arange(prompts, device="cpu").repeat_interleave(group_size)
        self.slots = Blocks((prompts, group_size), None)  # the rows by prompt
        self.bias: Tensor | None = None
        self._layers: dict[int, _Layer] = {}

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        if self.step < 0:
            return self._read(layer, query, key, value, scale)
        return self._continue(self._layers[layer], query, key, value, scale)

    def _read(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        prompts = self.layout.prompts
        q, k, v = (prompts.pad(tensor) for tensor in (query, key, value))
        empty = k.new_empty(len(self.prompt), k.shape[2], 0, k.shape[3])
        self._layers[layer] = _Layer(
            (k * scale).permute(0, 2, 3, 1).contiguous(), v.transpose(1, 2).contiguous(), empty, empty.clone()
        )
        self.bias = self.layout.prompt_bias(query.dtype)
        return prompts.unpad(causal_attention(q, k, v, scale))

    def _continue(self, layer: _Layer, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        rows, heads, size = query.shape
        kinds, length = layer.prompt_key.shape[1], layer.prompt_key.shape[3]
        step = self.step
        if step == layer.key.shape[2]:
            room = layer.key.new_empty(rows, kinds, ROOM, size)
            layer.key, layer.value = torch.cat([layer.key, room], 2), torch.cat([layer.value, room], 2)
        layer.key[:, :, step] = key * scale
        layer.value[:, :, step] = value
        q = query.reshape(rows, kinds, -1, size)  # [R, K, H / K, D]
        to_prompt = self._fold(q) @ layer.prompt_key
        if self.bias is not None:
            to_prompt += self.bias
        to_own = q @ layer.key[:, :, : step + 1].mT
        # One softmax over both.
        scores = torch.cat([self._unfold(to_prompt, q.shape[2]), to_own], -1).softmax(-1)
        own = scores[..., length:] @ layer.value[:, :, : step + 1]
        shared = self._fold(scores[..., :length]) @ layer.prompt_value
        return (own + self._unfold(shared, q.shape[2])).view(rows, heads, size)

    def _fold(self, rows: Tensor) -> Tensor:
        return self.slots.pad(rows).transpose(1, 2).flatten(2, 3)

    def _unfold(self, folded: Tensor, share: int) -> Tensor:
        slots: Tensor = folded.unflatten(2, (-1, share))
        return self.slots.unpad(slots.transpose(1, 2))

    def keep(self, rows: Tensor) -> None:
        """Keep only the answers at `rows`, ascending indices on the CPU."""
        device = self.layout.position_ids.device
        kept = rows.to(device, non_blocking=True)
        self.prompt = self.prompt[rows]
        for layer in self._layers.values():
            layer.key, layer.value = layer.key[kept], layer.value[kept]
        counts = torch.bincount(self.prompt, minlength=self.slots.shape[0])
        used = counts.nonzero()[:, 0]
        if len(used) <= CROWDED * len(counts):
            running = used.to(device, non_blocking=True)
            for layer in self._layers.values():
                layer.prompt_key, layer.prompt_value = layer.prompt_key[running], layer.prompt_value[running]
            if self.bias is not None:
                self.bias = self.bias[running]
            self.prompt = torch.searchsorted(used, self.prompt)
            counts = counts[used]
        shape = len(counts), int(counts.max())
        if shape[0] * shape[1] == len(self.prompt):
            self.slots = Blocks(shape, None)
        else:
            column = torch.arange(len(self.prompt), device="cpu") - (counts.cumsum(0) - counts)[self.prompt]
            self.slots = Blocks(shape, (self.prompt * shape[1] + column).to(device, non_blocking=True))
