"""Word problems for a calculator."""

from __future__ import annotations

from typing import Any

from lightning_cgrpo.datamodules.base import GeneratedDataModule, Split
from lightning_cgrpo.tasks.calculator.problems import CalculatorProblems


class CalculatorDataModule(GeneratedDataModule):
    """Word problems of one or two steps with numbers of two digits, learned within minutes.

    Columns: ``prompt``, a chat, ``answer``, ``steps``, and ``completion`` for fine-tuning, a conversation with the
    calculator. Splits share no question. The arguments are those of `GeneratedDataModule`.
    """

    def __init__(
        self,
        prompts_per_update: int = 16,
        train_prompts: int = 16_000,
        val_prompts: int = 250,
        test_prompts: int = 1_000,
        eval_prompts: int = 125,
        **options: Any,
    ) -> None:
        counts = (train_prompts, val_prompts, test_prompts)
        super().__init__(prompts_per_update, *counts, eval_prompts=eval_prompts, **options)

    def source(self, split: Split) -> CalculatorProblems:
        return CalculatorProblems(self.counts[split], split, self.seed)
