"""Positions of the agent, the goal and the lava."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.prompts.source import PromptSource
from lightning_cgrpo.core.randomness import Stream, generator
from lightning_cgrpo.core.rollout import PromptGroups


@dataclass(eq=False)
class Layouts(PromptSource):
    """Random layouts with `lava` lava cells, each determined by its index, the split's number and the seed.

    Columns: ``start [B]`` and ``goal [B]``, cells counted row by row, and ``lava [B, size * size]`` bool.

    Raises:
        UserError: the grid is too small for its lava.
    """

    count: int
    split: int = 0
    seed: int = 0
    size: int = 10
    lava: int = 20
    endless = True

    def __post_init__(self) -> None:
        room = self.size * self.size - 2
        if not 0 <= self.lava <= room:
            raise UserError(
                f"Expected argument `lava` to leave room for start and goal on a {self.size}x{self.size} grid, "
                f"at most {room} tiles, but got {self.lava}."
            )

    def __len__(self) -> int:
        return self.count

    def groups(self, index: Tensor) -> PromptGroups:
        cells = self.size * self.size
        drawn = np.empty((len(index), cells), dtype=np.int64)
        for row, prompt in enumerate(index.tolist()):
            drawn[row] = generator(self.seed, Stream.PROMPTS, self.split, prompt).permutation(cells)
        chosen = torch.from_numpy(drawn)  # [B, cells], all cells in random order
        lava = torch.zeros(len(index), cells, dtype=torch.bool)
        lava.scatter_(1, chosen[:, 2 : 2 + self.lava], True)
        return PromptGroups(index, {"start": chosen[:, 0], "goal": chosen[:, 1], "lava": lava})
