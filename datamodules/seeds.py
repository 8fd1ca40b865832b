"""Seeds of worlds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lightning_cgrpo.core.prompts.source import PromptSource
from lightning_cgrpo.core.randomness import Stream, generator
from lightning_cgrpo.core.rollout import PromptGroups
from lightning_cgrpo.datamodules.base import NUMBERS, GeneratedDataModule, Split


@dataclass(eq=False)
class Seeds(PromptSource):
    """Random seeds, each determined by its index, the split's number and the seed.

    Columns: ``seed [B]`` in [0, 2^31), and a list ``options`` if given.
    """

    count: int
    split: int
    seed: int
    options: dict[str, Any] | None
    endless = True

    def __len__(self) -> int:
        return self.count

    def groups(self, index: Tensor) -> PromptGroups:
        seeds = []
        for number in index.tolist():
            random = generator(self.seed, Stream.PROMPTS, self.split, number)
            seeds.append(int(random.integers(2**31)))
        columns: dict[str, Any] = {"seed": torch.tensor(seeds, dtype=torch.int64)}
        if self.options is not None:
            columns["options"] = [self.options] * len(seeds)
        return PromptGroups(index, columns)


class SeedDataModule(GeneratedDataModule):
    """Seeds for `lightning_cgrpo.Gymnasium`, whose worlds are reset with them.

    Args: see `GeneratedDataModule`, and

        options: of every reset, as the environment documents.
    """

    def __init__(
        self,
        prompts_per_update: int = 8,
        train_prompts: int = 64_000,
        val_prompts: int = 64,
        test_prompts: int = 256,
        eval_prompts: int = 64,
        options: dict[str, Any] | None = None,
        **others: Any,
    ) -> None:
        counts = (train_prompts, val_prompts, test_prompts)
        super().__init__(prompts_per_update, *counts, eval_prompts=eval_prompts, **others)
        self.options = options

    def source(self, split: Split) -> Seeds:
        return Seeds(self.counts[split], NUMBERS[split], self.seed, self.options)
