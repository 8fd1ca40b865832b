"""Keys and values during generation: once per prompt, and once per answer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from lightning_cgrpo.policies.shared_prefix.attention import causal_attention
from lightning_cgrpo.policies.shared_prefix.layout import Layout, range_on_cpu
from lightning_cgrpo.policies.shared_prefix.slots import Slots

CROWDED = 0.75
"""Largest share of the slots that answers may need for keys and values to be gathered in fewer slots."""

# Shapes: n prompts of P tokens; a grid with G cells for each prompt's answers; S slots for answers' keys and values; R
# answers that go on; H heads of queries, K of keys, width D.


@dataclass(eq=False)
class _Layer:
    """Cached keys and values of a layer: of the prompts, and of the answers, which each step writes in place.

    Slots without an answer hold arbitrary numbers, also NaN, which reach no other slot. The prompts' keys are
    multiplied by the attention's scale.
    """

    prompt_key: Tensor  # [n K, D, P]
    prompt_value: Tensor  # [n K, P, D]

    def __post_init__(self) -> None:
        self.query = self.key = self.value = self.prompt_key[:0]  # until `make_room`

    def make_room(self, slots: int, queries: int, room: int, zeros: bool) -> None:
        """Make empty caches of answers.

        Args:
            slots: S K.
            queries: H / K.
            room: most steps.
            zeros: fill the caches, because steps read keys and values that are not written yet.
        """
        width = self.prompt_value.shape[-1]
        allocate = self.prompt_value.new_zeros if zeros else self.prompt_value.new_empty
        self.query = allocate(slots, queries, width)  # of the step
        self.key = allocate(slots, room, width)
        self.value = allocate(slots, room, width)
        # Views that every step needs.
        self.key_cells = self.key.flatten(0, 1)
        self.value_cells = self.value.flatten(0, 1)

    def append(self, other: _Layer, length: int) -> None:
        """Append another's prompts, and pad or cut the padding to one `length`."""
        keys = []
        values = []
        for layer in (self, other):
            padding = length - layer.prompt_value.shape[1]
            keys.append(pad(layer.prompt_key, (0, padding)))
            values.append(pad(layer.prompt_value, (0, 0, 0, padding)))
        self.prompt_key = torch.cat(keys)
        self.prompt_value = torch.cat(values)


class Decoding:
    """`Attend` for generation: a packed row of prompts, then R answers, to which every step appends a token.

    Args:
        lengths: ``[n]`` of the prompts, on the CPU.
        group_size: answers to each prompt.
        room: most steps.
    """

    def __init__(self, layout: Layout, lengths: Tensor, group_size: int, room: int) -> None:
        self.layout = layout
        self.lengths = lengths
        self.room = room
        prompts = layout.prompts.shape[0]
        # On the CPU, so that no shape waits for the device.
        answers = prompts * group_size
        self.slots = Slots((prompts, group_size), range_on_cpu(answers), answers)
        self.steps = torch.full((answers,), -1, device="cpu")  # [R], the last step of each answer
        self.step = -1  # the largest of `steps`
        self._began = False  # the first step
        # [n K, 1, P], minus infinity for padding; None without padding
        self.bias: Tensor | None = None
        # [S K, 1, room], minus infinity where nothing is written yet; None if there is no such place
        self._own_bias: Tensor | None = None
        # [n K G], any slot for a cell without an answer; None while each cell is a slot
        self._slot_of_cell: Tensor | None = None
        self._cell_of_slot: Tensor | None = None  # [S K]
        self._heads = 0  # H
        self._kinds = 0  # K
        self._length = 0  # P
        self._layers: dict[int, _Layer] = {}

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        if not self._began:
            return self._read_prompts(layer, query, key, value, scale)
        return self._attend_step(self._layers[layer], query, key, value, scale)

    def advance(self) -> None:
        """Begin the next step."""
        if not self._began:
            self._began = True
            for layer in self._layers.values():
                self._make_room(layer)
            self._find_cells()
            self._relate_slots()
        self.steps = self.steps + 1
        self.step += 1
        self._cell += 1
        if self._own_bias is not None:
            self._own_bias.view(-1).index_fill_(0, self._cell, 0.0)

    def keep(self, rows: Tensor) -> None:
        """Keep only the answers at `rows`, ascending indices on the CPU."""
        self.slots = self.slots.kept(rows)
        self.steps = self.steps[rows]
        self.step = int(self.steps.max())
        # Copying the caches into fewer slots pays once enough slots are without an answer.
        fewer, source, left = self.slots.gathered()
        if len(source) <= CROWDED * self.slots.count:
            self._move_caches(fewer, source, left)
        elif self._began:
            self._find_cells()

    def join(self, other: Decoding) -> None:
        """Append another's prompts, which it has read, and its answers, which have no step yet."""
        # The answers move into the first slots, before the other's slots.
        slots, source, left = self.slots.joined(other.slots)
        self.steps = torch.cat([self.steps, other.steps])
        self.room = max(self.room, other.room)
        self._move_caches(slots, source, left)
        # The prompts of both are padded to one length.
        self.lengths = torch.cat([self.lengths, other.lengths])
        length = int(self.lengths.max())
        for number, layer in self._layers.items():
            layer.append(other._layers[number], length)
        bias = self._padded_bias(len(left), length)
        further_bias = other._padded_bias(other.slots.grid[0], length)
        self.bias = torch.cat([bias, further_bias]) if bool((self.lengths != length).any()) else None
        self._length = length

    def _read_prompts(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        prompts = self.layout.prompts
        q, k, v = (prompts.pad(tensor) for tensor in (query, key, value))  # [n, P, heads, D]
        if not self._layers:
            self._heads = query.shape[1]
            self._kinds = key.shape[1]
            self._length = q.shape[1]
            bias = self.layout.prompt_bias(query.dtype)
            self.bias = None if bias is None else bias[:, 0].repeat_interleave(self._kinds, 0)
            self._nothing = query.new_zeros(1)
        prompt_key = (k * scale).permute(0, 2, 3, 1).flatten(0, 1).contiguous()
        prompt_value = v.transpose(1, 2).flatten(0, 1).contiguous()
        self._layers[layer] = _Layer(prompt_key, prompt_value)
        return prompts.unpad(causal_attention(q, k, v, scale))

    def _make_room(self, layer: _Layer) -> None:
        zeros = self._reads_unwritten()
        layer.make_room(self.slots.count * self._kinds, self._heads // self._kinds, self.room, zeros)

    def _attend_step(self, layer: _Layer, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        length = self._length
        steps = self.step + 1
        # Each answer's queries, key and value are written into its slot.
        q = layer.query
        q.index_copy_(0, self._slot, query.reshape(-1, *q.shape[1:]))
        layer.key_cells.index_copy_(0, self._cell, key.flatten(0, 1))
        layer.value_cells.index_copy_(0, self._cell, value.flatten(0, 1))
        # Scores of the prompts' keys. `bmm`, because `@` prepares its operands with more operations on the host.
        by_prompt = self._by_prompt(q)
        if self.bias is None:
            to_prompt = torch.bmm(by_prompt, layer.prompt_key)
        else:
            to_prompt = torch.baddbmm(self.bias, by_prompt, layer.prompt_key)
        # Scores of the answers' own keys.
        own_keys = layer.key[:, :steps].mT
        if self._own_bias is None:
            to_own = torch.baddbmm(self._nothing, q, own_keys, beta=0, alpha=scale)
        else:
            to_own = torch.baddbmm(self._own_bias[..., :steps], q, own_keys, alpha=scale)
        # One softmax over both; without its dtype, autocast would leave float32.
        scores = torch.cat([self._by_slot(to_prompt), to_own], -1).softmax(-1, dtype=q.dtype)
        # The values of prompts and answers are added, weighted by the scores.
        attended = self._by_slot(torch.bmm(self._by_prompt(scores[..., :length]), layer.prompt_value))
        attended = attended.baddbmm_(scores[..., length:], layer.value[:, :steps])
        return attended.index_select(0, self._slot).view_as(query)

    def _by_prompt(self, rows: Tensor) -> Tensor:
        """Rows ``[S K, H / K, X]`` of slots as ``[n K, G H / K, X]``."""
        if self._slot_of_cell is not None:
            rows = rows.index_select(0, self._slot_of_cell)
        return rows.view(self.slots.grid[0] * self._kinds, -1, rows.shape[-1])

    def _by_slot(self, rows: Tensor) -> Tensor:
        """The inverse of `_by_prompt`."""
        rows = rows.view(-1, self._heads // self._kinds, rows.shape[-1])
        if self._cell_of_slot is None:
            return rows
        return rows.index_select(0, self._cell_of_slot)

    def _padded_bias(self, prompts: int, length: int) -> Tensor:
        bias = self.bias
        if bias is None:
            bias = self._nothing.new_zeros(prompts * self._kinds, 1, self._length)
        return pad(bias, (0, length - self._length), value=-torch.inf)

    def _move_caches(self, slots: Slots, source: Tensor, left: Tensor) -> None:
        """Make new caches, whose first slots are copies of `source`, and leave out prompts without answers."""
        steps = self.step + 1
        # The old row of each new row of the caches, a row for each slot and kind of heads.
        old = self._with_kinds(source, self.slots.per_kind).flatten()
        new = self._with_kinds(range_on_cpu(len(source)), slots.per_kind).flatten()
        index = self._on_device(torch.empty_like(old).index_copy(0, new, old))
        # The rows of the prompts that are left.
        prompts = self._on_device((left[:, None] * self._kinds + range_on_cpu(self._kinds)).flatten())
        self.slots = slots
        self.lengths = self.lengths[left]
        if self.bias is not None:
            self.bias = self.bias[prompts]
        for number, layer in self._layers.items():
            moved = _Layer(layer.prompt_key[prompts], layer.prompt_value[prompts])
            self._layers[number] = moved
            if self._began:  # The first step makes room.
                self._make_room(moved)
                moved.key[: len(index), :steps] = layer.key[index, :steps]
                moved.value[: len(index), :steps] = layer.value[index, :steps]
        if self._began:
            self._find_cells()
            self._relate_slots()

    def _find_cells(self) -> None:
        """Find the slot ``[R K]`` of each answer's kinds of heads, and its cell in the caches at its last step."""
        slot = self._with_kinds(self.slots.taken, self.slots.per_kind)  # [R, K]
        self._slot = self._on_device(slot.flatten())
        self._cell = self._on_device((slot * self.room + self.steps[:, None]).flatten())

    def _relate_slots(self) -> None:
        """Relate slots to cells, and hide what is not written yet."""
        slots = self.slots
        taken = self._with_kinds(slots.taken, slots.per_kind).flatten()  # [R K]
        self._slot_of_cell = None
        self._cell_of_slot = None
        self._own_bias = None
        if slots.slot is not None:
            prompts, group_size = slots.grid
            cell = self._with_kinds(slots.cell, group_size).flatten()  # [R K]
            # Slot 0 for cells without an answer.
            slot_of_cell = torch.zeros(prompts * group_size * self._kinds, dtype=torch.int64, device="cpu")
            self._slot_of_cell = self._on_device(slot_of_cell.index_copy(0, cell, taken))
            self._cell_of_slot = self._on_device(torch.empty_like(cell).index_copy(0, taken, cell))
        if self._reads_unwritten():
            last = torch.full((slots.count * self._kinds,), -1, device="cpu")  # step written last, by row of the caches
            last = last.index_copy(0, taken, self.steps.repeat_interleave(self._kinds))
            unwritten = self._on_device(range_on_cpu(self.room)) > self._on_device(last)[:, None, None]
            self._own_bias = self._nothing.new_zeros(unwritten.shape).masked_fill_(unwritten, -torch.inf)

    def _reads_unwritten(self) -> bool:
        """Whether a step reads keys and values that are not written yet."""
        return bool((self.steps != self.step).any())

    def _with_kinds(self, slots: Tensor, per_kind: int) -> Tensor:
        """Rows ``[X, K]`` of the caches, for slots or cells ``[X]``, of which `per_kind` are neighbors in each kind."""
        block = slots[:, None] // per_kind  # [X, 1], of neighboring slots
        return (block * self._kinds + range_on_cpu(self._kinds)) * per_kind + slots[:, None] % per_kind

    def _on_device(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.layout.position_ids.device, non_blocking=True)
