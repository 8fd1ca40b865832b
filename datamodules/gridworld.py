"""Gridworld layouts."""

from __future__ import annotations

from typing import Any

from lightning_cgrpo.datamodules.base import NUMBERS, GeneratedDataModule, Split
from lightning_cgrpo.tasks.gridworld.prompts import Layouts


class GridworldDataModule(GeneratedDataModule):
    """Random gridworld layouts; by default an epoch has 8,000 updates.

    Args: see `GeneratedDataModule`, and

        size: side of the square grid.
        lava: lava tiles.
    """

    def __init__(
        self,
        prompts_per_update: int = 8,
        train_prompts: int = 64_000,
        val_prompts: int = 1_000,
        test_prompts: int = 1_000,
        eval_prompts: int = 500,
        size: int = 10,
        lava: int = 20,
        **options: Any,
    ) -> None:
        counts = (train_prompts, val_prompts, test_prompts)
        super().__init__(prompts_per_update, *counts, eval_prompts=eval_prompts, **options)
        self.size = size
        self.lava = lava

    def source(self, split: Split) -> Layouts:
        return Layouts(self.counts[split], NUMBERS[split], self.seed, self.size, self.lava)
