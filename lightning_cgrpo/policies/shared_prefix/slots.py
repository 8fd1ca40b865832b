"""Where running answers are during generation: in a grid of prompts, and in the slots of the caches."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_cgrpo.policies.shared_prefix.layout import index_in_row, range_on_cpu

# Shapes: n prompts; a grid with G cells for each prompt's answers; S slots for answers' keys and values; R answers that
# go on.


@dataclass(frozen=True)
class Slots:
    """Where the R answers are, on the CPU: their cells in the grid, and their slots in the caches.

    The slot of an ended answer still computes, but nobody reads it.
    """

    grid: tuple[int, int]  # n, G
    cell: Tensor  # [R], ascending
    count: int
    slot: Tensor | None = None  # [R], ascending; None while each cell is a slot, until prompts join

    @property
    def taken(self) -> Tensor:
        return self.cell if self.slot is None else self.slot

    @property
    def per_kind(self) -> int:
        """Neighboring slots with the same kind of heads: a prompt's G, or one after a join."""
        return self.grid[1] if self.slot is None else 1

    def kept(self, rows: Tensor) -> Slots:
        slot = None if self.slot is None else self.slot[rows]
        return Slots(self.grid, self.cell[rows], self.count, slot)

    def prompts_left(self) -> tuple[Tensor, Tensor]:
        """The prompts ``[n']`` with answers, and the number among them of each answer's prompt ``[R]``."""
        return torch.unique(self.cell // self.grid[1], return_inverse=True)

    def gathered(self) -> tuple[Slots, Tensor, Tensor]:
        """As few slots as possible, the old slot of each (any for an empty one), and the prompts left ``[n']``."""
        left, prompt = self.prompts_left()
        grid, cell = _smallest_grid(prompt)
        if self.slot is not None:
            answers = len(cell)
            return Slots(grid, cell, answers, range_on_cpu(answers)), self.slot, left
        # Each cell of the smaller grid is a slot; cells without an answer copy any slot.
        source = self.cell[:1].repeat(grid[0] * grid[1])
        source[cell] = self.cell
        return Slots(grid, cell, len(source)), source, left

    def joined(self, other: Slots) -> tuple[Slots, Tensor, Tensor]:
        """`gathered`, followed by another's answers.

        Each answer has a slot of its own. As a cell of the grid, one that goes on alone would take a whole group's.
        """
        left, prompt = self.prompts_left()
        _, other_prompt = other.prompts_left()
        grid, cell = _smallest_grid(torch.cat([prompt, len(left) + other_prompt]))
        answers = len(cell)
        return Slots(grid, cell, answers, range_on_cpu(answers)), self.taken, left


def _smallest_grid(prompt: Tensor) -> tuple[tuple[int, int], Tensor]:
    """The smallest grid for answers to prompts ``[R]``, which are 0 to n - 1 and ascending, and their cells ``[R]``."""
    counts = torch.bincount(prompt)
    columns = int(counts.max())
    return (len(counts), columns), prompt * columns + index_in_row(counts)
