"""Keys and values during generation: once per prompt, and once per answer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_cgrpo.policies.shared_prefix.attention import causal_attention
from lightning_cgrpo.policies.shared_prefix.layout import Layout

CROWDED = 0.75
"""Largest share of the slots that answers may need for keys and values to be gathered in fewer slots."""
FEWEST_COLUMNS = 128
"""Keys and values of an answer that fixed steps read at first."""

# Shapes: n prompts of P tokens, G slots each for answers' keys and values, R answers that go on; H heads of queries, K
# of keys, width D.


class _Layer:
    """Cached keys and values of a layer: of the prompts, and of the answers, which each step writes in place.

    Slots without an answer hold arbitrary numbers, also NaN, which reach no other slot. The prompts' keys are
    multiplied by the attention's scale.

    Args:
        prompt_key: ``[n K, D, P]``.
        prompt_value: ``[n K, P, D]``.
        slots: n K G.
        queries: H / K.
        room: most steps.
        zeros: fill the caches, because fixed steps read keys and values that are not written yet.
    """

    def __init__(
        self, prompt_key: Tensor, prompt_value: Tensor, slots: int, queries: int, room: int, zeros: bool
    ) -> None:
        self.prompt_key, self.prompt_value = prompt_key, prompt_value
        width = prompt_value.shape[-1]
        made = prompt_value.new_zeros if zeros else prompt_value.new_empty
        self.query = made(slots, queries, width)  # of the step
        self.key, self.value = made(slots, room, width), made(slots, room, width)
        # Views that every step needs.
        self.key_cells, self.value_cells = self.key.flatten(0, 1), self.value.flatten(0, 1)
        self.folded = self.query.view(len(prompt_key), -1, width)  # [n K, G H / K, D]


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


class Decoding:
    """`Attend` for generation: a packed row of prompts, then R answers, to which every step appends a token.

    Steps are `fixed` to be captured as a CUDA graph: all slots compute, whether an answer is in them or not, each step
    reads `columns` of the caches, and the number of the step is on the device. A step's numbers then depend on nothing
    but static tensors.

    Args:
        group_size: answers to each prompt.
        room: most steps.
    """

    def __init__(self, layout: Layout, group_size: int, room: int, fixed: bool = False) -> None:
        self.layout, self.room, self.fixed = layout, room, fixed
        self.step = -1
        self.columns = min(FEWEST_COLUMNS, room)  # of fixed steps; the host doubles them
        prompts = layout.prompts.shape[0]
        # On the CPU, so that no shape waits for the device.
        self.slots = _Slots((prompts, group_size), torch.arange(prompts * group_size, device="cpu"))
        self.bias: Tensor | None = None  # [n K, 1, P]
        self._heads = self._kinds = 0
        self._layers: dict[int, _Layer] = {}
        device = layout.position_ids.device
        self._step = torch.full((1,), -1, device=device)  # `step` on the device
        self._own_bias: Tensor | None = None  # [1, 1, room], minus infinity after a fixed step, else 0

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        if self.step < 0:
            return self._read(layer, query, key, value, scale)
        return self._continue(self._layers[layer], query, key, value, scale)

    def advance(self) -> bool:
        """Begin the next step on the host; returns whether the shapes of fixed steps changed."""
        self.step += 1
        if self.step < self.columns or not self.fixed:
            return False
        self.columns = min(2 * self.columns, self.room)
        return True

    def advance_on_device(self) -> None:
        """Begin the next step on the device."""
        self._step += 1
        self._cell += 1
        if self._own_bias is not None:
            self._own_bias.index_fill_(-1, self._step, 0.0)

    def _read(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        prompts = self.layout.prompts
        q, k, v = (prompts.pad(tensor) for tensor in (query, key, value))
        if not self._layers:
            self._heads, self._kinds = query.shape[1], key.shape[1]
            bias = self.layout.prompt_bias(query.dtype)
            self.bias = None if bias is None else bias[:, 0].repeat_interleave(self._kinds, 0)
            if self.fixed:
                self._own_bias = query.new_full((1, 1, self.room), -torch.inf)
            self._nothing = query.new_zeros(1)
            self._place()
        prompt_key = (k * scale).permute(0, 2, 3, 1).flatten(0, 1).contiguous()
        self._layers[layer] = self._layer(prompt_key, v.transpose(1, 2).flatten(0, 1).contiguous())
        return prompts.unpad(causal_attention(q, k, v, scale))

    def _layer(self, prompt_key: Tensor, prompt_value: Tensor) -> _Layer:
        slots = len(prompt_key) * self.slots.shape[1]
        return _Layer(prompt_key, prompt_value, slots, self._heads // self._kinds, self.room, self.fixed)

    def _place(self) -> None:
        """Find the slot ``[R K]`` of each answer's kinds of heads, and its cell in the caches at the current step."""
        group, kinds, taken = self.slots.shape[1], self._kinds, self.slots.taken[:, None]
        if self.fixed:
            taken = torch.arange(self.slots.shape[0] * group, device="cpu")[:, None]
        slot = (taken // group * kinds + torch.arange(kinds, device="cpu")) * group + taken % group  # [R, K]
        self._slot = slot.flatten().to(self.layout.position_ids.device, non_blocking=True)
        self._cell = self._slot * self.room + self.step

    def _continue(self, layer: _Layer, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        q, folded, length = layer.query, layer.folded, layer.prompt_value.shape[1]
        steps = self.columns if self.fixed else self.step + 1
        q.index_copy_(0, self._slot, query.reshape(-1, *q.shape[1:]))
        layer.key_cells.index_copy_(0, self._cell, key.flatten(0, 1))
        layer.value_cells.index_copy_(0, self._cell, value.flatten(0, 1))
        # `bmm`, because `@` prepares its operands with more operations on the host.
        if self.bias is None:
            to_prompt = torch.bmm(folded, layer.prompt_key)
        else:
            to_prompt = torch.baddbmm(self.bias, folded, layer.prompt_key)
        own_keys = layer.key[:, :steps].mT
        if self._own_bias is None:
            to_own = torch.baddbmm(self._nothing, q, own_keys, beta=0, alpha=scale)
        else:
            to_own = torch.baddbmm(self._own_bias[..., :steps], q, own_keys, alpha=scale)
        # One softmax over both; without its dtype, autocast would leave float32.
        scores = torch.cat([to_prompt.view(*q.shape[:2], -1), to_own], -1).softmax(-1, dtype=q.dtype)
        attended = torch.bmm(scores.view(*folded.shape[:2], -1)[..., :length], layer.prompt_value)
        attended = attended.view_as(q).baddbmm_(scores[..., length:], layer.value[:, :steps])
        return attended.index_select(0, self._slot).view_as(query)

    def keep(self, rows: Tensor) -> Tensor | None:
        """Keep only the answers at `rows`, ascending indices on the CPU.

        Returns:
            the old slots ``[n' G']`` of the new ones, on the CPU; None if the slots stay.
        """
        slots = self.slots = self.slots.kept(rows)
        fewer, source, left = slots.gathered()
        gathers = len(source) <= CROWDED * slots.shape[0] * slots.shape[1]
        if gathers:
            self._gather(fewer, source, left)
        if gathers or not self.fixed:
            self._place()
        return source if gathers else None

    def _gather(self, slots: _Slots, source: Tensor, prompts: Tensor) -> None:
        """Copy the caches into fewer slots, and leave out prompts without answers."""
        device, kinds, steps = self.layout.position_ids.device, self._kinds, self.step + 1
        kind, group = torch.arange(kinds, device="cpu"), self.slots.shape[1]
        prompt, column = (source // group).view(-1, 1, slots.shape[1]), (source % group).view(-1, 1, slots.shape[1])
        index = ((prompt * kinds + kind[:, None]) * group + column).flatten().to(device, non_blocking=True)
        left = (prompts[:, None] * kinds + kind).flatten().to(device, non_blocking=True)
        self.slots = slots
        self.bias = None if self.bias is None else self.bias[left]
        for number, old in self._layers.items():
            new = self._layers[number] = self._layer(old.prompt_key[left], old.prompt_value[left])
            new.key[:, :steps], new.value[:, :steps] = old.key[index, :steps], old.value[index, :steps]
