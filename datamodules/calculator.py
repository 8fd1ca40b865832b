"""Word problems for a calculator."""

from __future__ import annotations

from lightning_cgrpo.datamodules.base import Split
from lightning_cgrpo.datamodules.word_problems import WordProblemsDataModule
from lightning_cgrpo.tasks.calculator.problems import CalculatorProblems


class CalculatorDataModule(WordProblemsDataModule):
    """Word problems of one or two steps with numbers of two digits, learned within minutes.

    Columns: ``prompt``, a chat, ``answer``, ``steps``, and ``completion`` for fine-tuning, a conversation with the
    calculator. Splits share no question. The arguments are those of `WordProblemsDataModule`.
    """

    def source(self, split: Split) -> CalculatorProblems:
        return CalculatorProblems(self.counts[split], split, self.seed)
