"""Keys and values during generation: once per prompt, and once per answer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_cgrpo.policies.shared_prefix.attention import causal_attention
from lightning_cgrpo.policies.shared_prefix.layout import Layout

ROOM = 64
"""Tokens per allocation of keys and values."""
CROWDED = 0.75
"""Largest share of the slots that answers may need for keys and values to be gathered in fewer slots."""

# Shapes: n prompts of P tokens, G slots each for answers' keys and values, R answers that go on; H heads of queries, K
# of keys, width D.


@dataclass
class _Layer:
    """Cached keys and values of a layer; the prompts' keys are multiplied by the attention's scale."""

    prompt_key: Tensor  # [n K, D, P]
    prompt_value: Tensor  # [n K, P, D]
    key: Tensor  # [n K G, room, D]
    value: Tensor  # [n K G, room, D]


@dataclass(frozen=True)
class _Slots:
    """Which answer has which of the slots ``[n, G]``; after an answer has ended, its slot computes without a reader."""

    shape: tuple[int, int]
    taken: Tensor  # [R] on the CPU, ascending

    def kept(self, rows: Tensor) -> _Slots:
        return _Slots(self.shape, self.taken[rows])

    def gathered(self) -> tuple[_Slots, Tensor, Tensor]:
        """As few slots as possible, the old slot of each ``[n' G']``, and the prompts that are left ``[n']``."""
        old, number = self.taken // self.shape[1], torch.arange(len(self.taken), device="cpu")
        counts = torch.bincount(old, minlength=self.shape[0])
        left = counts.nonzero()[:, 0]
        counts = counts[left]
        shape = len(left), int(counts.max())
        prompt = torch.searchsorted(left, old)
        taken = prompt * shape[1] + number - (counts.cumsum(0) - counts)[prompt]
        source = self.taken[:1].repeat(shape[0] * shape[1])
        source[taken] = self.taken
        return _Slots(shape, taken), source, left

    @property
    def answer(self) -> Tensor:
        """``[n G]``, each slot's answer; of a slot without a reader the first."""
        answer = self.taken.new_zeros(self.shape[0] * self.shape[1])
        answer[self.taken] = torch.arange(len(self.taken), device="cpu")
        return answer


class Decoding:
    """`Attend` for generation: a packed row of prompts (`step` is -1), then R answers token by token."""

    def __init__(self, layout: Layout, group_size: int) -> None:
        self.layout = layout
        self.step = -1
        prompts = layout.prompts.shape[0]
        # On the CPU, so that no shape waits for the device.
        self.slots = _Slots((prompts, group_size), torch.arange(prompts * group_size, device="cpu"))
        self.bias: Tensor | None = None  # [n K, 1, P]
        self._kinds = 0
        self._layers: dict[int, _Layer] = {}

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        if self.step < 0:
            return self._read(layer, query, key, value, scale)
        return self._continue(self._layers[layer], query, key, value, scale)

    def _read(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        prompts = self.layout.prompts
        q, k, v = (prompts.pad(tensor) for tensor in (query, key, value))
        kinds, size = k.shape[2:]
        empty = k.new_empty(len(self.slots.taken) * kinds, 0, size)
        self._layers[layer] = _Layer(
            (k * scale).permute(0, 2, 3, 1).flatten(0, 1).contiguous(),
            v.transpose(1, 2).flatten(0, 1).contiguous(),
            empty,
            empty.clone(),
        )
        if self._kinds != kinds:
            self._kinds = kinds
            bias = self.layout.prompt_bias(query.dtype)
            self.bias = None if bias is None else bias[:, 0].repeat_interleave(kinds, 0)
            self._place()
        return prompts.unpad(causal_attention(q, k, v, scale))

    def _place(self) -> None:
        """Find rows ``[n K G]`` of caches and ``[R K]`` of answers in each other."""
        (_, group), kinds, device = self.slots.shape, self._kinds, self.layout.position_ids.device
        kind = torch.arange(kinds, device="cpu")
        taken = self.slots.taken[:, None]
        row = (taken // group * kinds + kind) * group + taken % group  # [R, K]
        answer = self.slots.answer.view(-1, 1, group) * kinds + kind[:, None]  # [n, K, G]
        self._row = row.flatten().to(device, non_blocking=True)
        self._answer = answer.flatten().to(device, non_blocking=True)

    def _continue(self, layer: _Layer, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        rows, kinds, size = key.shape
        prompts, step = self.slots.shape[0], self.step
        if step == layer.key.shape[1]:
            room = layer.key.new_empty(len(layer.key), ROOM, size)
            layer.key, layer.value = torch.cat([layer.key, room], 1), torch.cat([layer.value, room], 1)
        layer.key.select(1, step).index_copy_(0, self._row, key.flatten(0, 1))
        layer.value.select(1, step).index_copy_(0, self._row, value.flatten(0, 1))
        q = query.reshape(rows * kinds, -1, size).index_select(0, self._answer)  # [n K G, H / K, D]
        folded = q.view(prompts * kinds, -1, size)
        nothing = q.new_empty(1)
        if self.bias is None:
            to_prompt = folded @ layer.prompt_key
        else:
            to_prompt = torch.baddbmm(self.bias, folded, layer.prompt_key)
        to_own = torch.baddbmm(nothing, q, layer.key[:, : step + 1].mT, beta=0, alpha=scale)
        # One softmax over both; without its dtype, autocast would leave float32.
        scores = torch.cat([to_prompt.view(*q.shape[:2], -1), to_own], -1).softmax(-1, dtype=q.dtype)
        length = to_prompt.shape[-1]
        attended = scores[..., :length].reshape(prompts * kinds, -1, length) @ layer.prompt_value
        attended = attended.view_as(q).baddbmm_(scores[..., length:], layer.value[:, : step + 1])
        return attended.index_select(0, self._row).view(rows, -1, size)

    def keep(self, rows: Tensor) -> None:
        """Keep only the answers at `rows`, ascending indices on the CPU."""
        slots = self.slots = self.slots.kept(rows)
        fewer, source, left = slots.gathered()
        if len(source) <= CROWDED * slots.shape[0] * slots.shape[1]:
            self._gather(fewer, source, left)
        self._place()

    def _gather(self, slots: _Slots, source: Tensor, prompts: Tensor) -> None:
        device, kinds = self.layout.position_ids.device, self._kinds
        kind, group = torch.arange(kinds, device="cpu"), self.slots.shape[1]
        prompt, column = (source // group).view(-1, 1, slots.shape[1]), (source % group).view(-1, 1, slots.shape[1])
        index = ((prompt * kinds + kind[:, None]) * group + column).flatten().to(device, non_blocking=True)
        for layer in self._layers.values():
            layer.key, layer.value = layer.key[index], layer.value[index]
        if len(prompts) < self.slots.shape[0]:
            left = (prompts[:, None] * kinds + kind).flatten().to(device, non_blocking=True)
            for layer in self._layers.values():
                layer.prompt_key, layer.prompt_value = layer.prompt_key[left], layer.prompt_value[left]
            self.bias = None if self.bias is None else self.bias[left]
        self.slots = slots
