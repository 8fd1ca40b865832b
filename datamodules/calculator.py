"""Word problems for a calculator."""

from __future__ import annotations

from lightning_cgrpo.datamodules.base import GroupDataModule, Split
from lightning_cgrpo.tasks.calculator.problems import CalculatorProblems, Manners


class CalculatorDataModule(GroupDataModule):
    """Word problems of one or two steps with numbers of three digits, learned within minutes.

    Columns: ``prompt``, a chat, ``answer``, ``steps``, and ``completion`` for fine-tuning, a conversation with the
    calculator. Splits share no question.

    Args:
        train_prompts: training problems, one epoch.
        manners: habits and faults of the demonstrated conversations.
        val_prompts: validation problems.
        test_prompts: problems for test and prediction.
    """

    def __init__(
        self,
        prompts_per_update: int = 16,
        train_prompts: int = 16_000,
        manners: Manners = Manners(),  # noqa: B008 (frozen)
        val_prompts: int = 250,
        test_prompts: int = 1_000,
        eval_prompts: int = 125,
        max_eval_prompts: int | None = None,
        test_train_prompts: int = 0,
        seed: int | None = None,
    ) -> None:
        super().__init__(prompts_per_update, eval_prompts, max_eval_prompts, test_train_prompts, seed)
        self.manners = manners
        self.counts = {"train": train_prompts, "val": val_prompts, "test": test_prompts, "predict": test_prompts}

    def source(self, split: Split) -> CalculatorProblems:
        return CalculatorProblems(self.counts[split], "test" if split == "predict" else split, self.seed, self.manners)
