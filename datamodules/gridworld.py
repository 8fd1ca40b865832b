"""Gridworld layouts."""

from __future__ import annotations

from lightning_cgrpo.datamodules.base import GroupDataModule, Split
from lightning_cgrpo.tasks.gridworld.prompts import Layouts


class GridworldDataModule(GroupDataModule):
    """Random gridworld layouts.

    Args:
        train_prompts: training layouts, one epoch (default: 8,000 updates of 8).
        val_prompts: validation layouts.
        test_prompts: layouts for test and prediction.
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
        seed: int | None = None,
    ) -> None:
        super().__init__(prompts_per_update, eval_prompts, seed=seed)
        self.counts = {"train": train_prompts, "val": val_prompts, "test": test_prompts, "predict": test_prompts}
        self.size, self.lava = size, lava

    def source(self, split: Split) -> Layouts:
        stream = {"train": 0, "val": 1, "test": 2, "predict": 2}[split]
        return Layouts(self.counts[split], split=stream, seed=self.seed, size=self.size, lava=self.lava)
