"""Keys and values of generation in pages of fixed size, and the attention of a step to them.

A page holds neighboring tokens of a text. A table names the pages of each slot, so a text grows and ends without a
copy, and answers share the pages of their prompt (vLLM; Kwon et al., 2023).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from lightning_cgrpo.core.distributed import rank_zero_warn
from lightning_cgrpo.policies.shared_prefix.attention import PackedAttention
from lightning_cgrpo.policies.shared_prefix.layout import range_on_cpu
from lightning_cgrpo.policies.shared_prefix.step_sizes import PAGE, StepSizes, pages_of
from lightning_cgrpo.policies.shared_prefix.varlen import runs_flash

TRASH = 0
"""The page of slots without an answer, which no answer gets."""
NEEDED = ("seqused_k", "block_table")
"""Arguments of PyTorch's flash kernel that read pages, since torch 2.13."""
CLOSE = 0.02
"""Largest difference that rounding to bfloat16 explains."""

# Shapes: S slots; C columns of the table, the most pages of a slot; H heads of queries, K of keys, width D.


class Pages:
    """A pool of pages for each layer, and the pages of each slot; `Attend` for a step of one token in each slot.

    The host keeps the lists of pages, and the device the table. Tensors stay at their addresses.

    Attributes:
        count: pages of the pool, with the page `TRASH`.
        size: tokens of a page.
    """

    def __init__(self, sizes: StepSizes, device: torch.device) -> None:
        self.count = sizes.pages
        self.size = sizes.page
        slots = sizes.slots
        # On the host.
        self.free = list(range(self.count - 1, TRASH, -1))
        self._readers = [0] * self.count  # slots that read a page
        self._of_slot: list[list[int]] = [[] for _ in range(slots)]
        # On the device.
        self.pools: dict[int, tuple[Tensor, Tensor]] = {}  # keys and values of a layer, [count, size, K, D]
        self.table = torch.zeros(slots, sizes.columns, dtype=torch.int32, device=device)
        self.written = torch.zeros(slots, dtype=torch.int32, device=device)  # tokens of each slot
        self._cell = torch.zeros(slots, dtype=torch.int64, device=device)  # of the step's token
        self._seen = torch.ones(slots, dtype=torch.int32, device=device)  # tokens that the step attends to
        self._ends = torch.arange(slots + 1, dtype=torch.int32, device=device)  # of the step's queries

    # --- on the host

    def needed(self, prompt: int, answer: int) -> tuple[int, int]:
        """Pages that the answers to a prompt share, and further pages of each answer, for this many tokens."""
        shared = prompt // self.size
        return shared, pages_of(prompt + answer, self.size) - shared

    def give(self, slots: Sequence[int], prompt: int, answer: int) -> tuple[list[int], list[list[int]]]:
        """Give pages to the slots of answers to one prompt; returns the shared ones, and the own ones of each slot."""
        shared_count, own_count = self.needed(prompt, answer)
        shared = [self.free.pop() for _ in range(shared_count)]
        own = []
        for slot in slots:
            pages = [self.free.pop() for _ in range(own_count)]
            own.append(pages)
            self._of_slot[slot] = [*shared, *pages]
            for page in self._of_slot[slot]:
                self._readers[page] += 1
        return shared, own

    def release(self, slot: int) -> None:
        """Take back a slot's pages, as far as no other slot reads them."""
        for page in self._of_slot[slot]:
            self._readers[page] -= 1
            if not self._readers[page]:
                self.free.append(page)
        self._of_slot[slot] = []

    # --- on the device

    def advance(self, going_on: Tensor) -> None:
        """Find the cell of each slot's next token; slots ``[S]`` that don't go on write into the trash."""
        column = self.written // self.size * going_on  # that of a full slot would be beyond the table
        page = self.table.gather(1, column[:, None].long())[:, 0].long()
        self._cell.copy_(torch.where(going_on, page * self.size + self.written % self.size, TRASH))
        self.written.add_(going_on)
        self._seen.copy_(self.written.clamp(min=1))

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        keys, values = self.pools[layer]
        keys.flatten(0, 1).index_copy_(0, self._cell, key)
        values.flatten(0, 1).index_copy_(0, self._cell, value)
        return paged_attention(query, keys, values, self.table, self._seen, self._ends, scale)


@dataclass(frozen=True, eq=False)
class PromptsIntoPages:
    """`Attend` of new prompts, whose keys and values are copied into pages."""

    attend: PackedAttention
    pages: Pages
    source: Tensor  # [X] tokens of the packed row of prompts
    cells: Tensor  # [X] where their keys and values go

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        if layer not in self.pages.pools:
            shape = (self.pages.count, self.pages.size, *key.shape[1:])
            self.pages.pools[layer] = key.new_zeros(shape), value.new_zeros(shape)
        for pool, states in zip(self.pages.pools[layer], (key, value), strict=True):
            pool.flatten(0, 1).index_copy_(0, self.cells, states.index_select(0, self.source))
        return self.attend(layer, query, key, value, scale)


@dataclass(frozen=True, eq=False)
class NotedBytes:
    """`Attend` that notes the bytes of a token's keys and values in all layers."""

    attend: PackedAttention
    of_layer: dict[int, int] = field(default_factory=dict)

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        self.of_layer[layer] = 2 * key[0].numel() * key.element_size()
        return self.attend(layer, query, key, value, scale)


def cells_of(pages: Sequence[int], size: int, count: int) -> Tensor:
    """The cells ``[count]`` of the first tokens in a text's pages, on the CPU."""
    starts = torch.tensor(pages, dtype=torch.int64, device="cpu") * size
    cells = starts[:, None] + range_on_cpu(size)  # [pages, size]
    return cells.flatten()[:count]


def paged_attention(
    query: Tensor, keys: Tensor, values: Tensor, table: Tensor, seen: Tensor, ends: Tensor, scale: float
) -> Tensor:
    """Attended values ``[S, H, D]`` of one query per slot, to the first `seen` ``[S]`` tokens of the slot's pages.

    Args:
        query: ``[S, H, D]``.
        keys: ``[pages, size, K, D]``, as `values`.
        table: ``[S, C]`` int32.
        seen: ``[S]`` int32, at least 1.
        ends: ``[S + 1]`` int32, 0 to S.
    """
    if runs_flash(query) and _kernel_works(query.device, query.dtype, query.shape[1], *keys.shape[2:]):
        return _by_kernel(query, keys, values, table, seen, ends, scale)
    return _attention_of_copies(query, keys, values, table, seen, scale)


def _by_kernel(
    query: Tensor, keys: Tensor, values: Tensor, table: Tensor, seen: Tensor, ends: Tensor, scale: float
) -> Tensor:
    most = table.shape[1] * keys.shape[1]
    attended, *_ = torch.ops.aten._flash_attention_forward(
        query, keys, values, ends, None, 1, most, 0.0, False, False, scale=scale, seqused_k=seen, block_table=table
    )
    return attended


def _attention_of_copies(
    query: Tensor, keys: Tensor, values: Tensor, table: Tensor, seen: Tensor, scale: float
) -> Tensor:
    """`paged_attention` of a copy of all pages, for any device, dtype and width."""
    k = keys[table.long()].flatten(1, 2).transpose(1, 2)  # [S, K, C size, D]
    v = values[table.long()].flatten(1, 2).transpose(1, 2)
    mask = torch.arange(k.shape[2], device=query.device) < seen[:, None]  # [S, C size]
    gqa = k.shape[1] != query.shape[1]
    attended: Tensor = scaled_dot_product_attention(
        query[:, :, None], k, v, attn_mask=mask[:, None, None], scale=scale, enable_gqa=gqa
    )
    return attended[:, :, 0]


def kernel_reads(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether PyTorch's flash kernel can read pages of this dtype there; other devices read copies of them."""
    if device.type != "cuda":
        return True
    recent = torch.cuda.get_device_capability(device) >= (8, 0)
    return takes_pages() and recent and dtype in (torch.float16, torch.bfloat16)


def takes_pages() -> bool:
    """Whether PyTorch's flash kernel reads pages, by its signature."""
    names = {argument.name for argument in torch.ops.aten._flash_attention_forward.default._schema.arguments}
    return names.issuperset(NEEDED)


@cache
def _kernel_works(device: torch.device, dtype: torch.dtype, heads: int, kinds: int, width: int) -> bool:
    """Try the flash kernel on small pages: does it attend as `_attention_of_copies` does? A failure is told."""
    if not takes_pages():
        return False
    size = PAGE["cuda"]
    slots = 3
    columns = 2
    pages = 1 + slots * columns
    draw = torch.Generator("cpu").manual_seed(0)
    query = torch.randn((slots, heads, width), generator=draw, device="cpu").to(device, dtype)
    keys = torch.randn((pages, size, kinds, width), generator=draw, device="cpu").to(device, dtype)
    values = torch.randn((pages, size, kinds, width), generator=draw, device="cpu").to(device, dtype)
    table = torch.arange(1, pages, dtype=torch.int32, device=device).flip(0).view(slots, columns)
    seen = torch.tensor([1, size, size + 5], dtype=torch.int32, device=device)
    ends = torch.arange(slots + 1, dtype=torch.int32, device=device)
    expected = _attention_of_copies(query, keys, values, table, seen, width**-0.5)
    try:
        attended = _by_kernel(query, keys, values, table, seen, ends, width**-0.5)
        agrees = torch.allclose(attended, expected, rtol=CLOSE, atol=CLOSE)
        reason = "it gives other values than plain attention"
    except Exception as error:  # of PyTorch: the kernel refuses this device, dtype or width
        agrees = False
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
    if not agrees:
        rank_zero_warn(f"Generation gathers keys and values, instead of PyTorch's paged flash kernel, because {reason}")
    return agrees
