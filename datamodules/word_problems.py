"""Generated word problems and demonstrations."""

from __future__ import annotations

from typing import Any

from lightning_cgrpo.core.prompts.source import PromptLoader
from lightning_cgrpo.datamodules.base import GeneratedDataModule, Split
from lightning_cgrpo.tasks.calculator.problems import CalculatorProblems
from lightning_cgrpo.tasks.gsm8k.generated_prompts import WordProblemDemonstrations, WordProblems


class WordProblemsDataModule(GeneratedDataModule):
    """Grade-school word problems of one to three steps, learned within minutes.

    Columns: ``prompt``, a plain text, and ``answer``. Splits share no question. The arguments are those of
    `GeneratedDataModule`.
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

    def source(self, split: Split) -> WordProblems:
        return WordProblems(self.counts[split], split, self.seed)


class CalculatorDataModule(WordProblemsDataModule):
    """Word problems of one or two steps with numbers of two digits, for a calculator, learned within minutes.

    Columns: ``prompt``, a chat, ``answer``, ``steps``, and ``completion`` for fine-tuning, a conversation with the
    calculator. Splits share no question. The arguments are those of `WordProblemsDataModule`.
    """

    def source(self, split: Split) -> CalculatorProblems:
        return CalculatorProblems(self.counts[split], split, self.seed)


class WordProblemDemonstrationsDataModule(WordProblemsDataModule):
    """Word problems for fine-tuning; training has the column ``completion``.

    Flawless short answers come first and teach arithmetic. Flawed answers leave constrained training something to
    do.
    """

    def train_dataloader(self) -> PromptLoader:
        source = WordProblemDemonstrations(self.counts["train"], "train", self.seed)
        return self._training_loader(source, seed=None)  # not shuffled: the flawless answers come first
