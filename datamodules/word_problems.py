"""Generated word problems and demonstrations."""

from __future__ import annotations

from lightning_cgrpo.datamodules.base import GroupDataModule, Split
from lightning_cgrpo.prompt_source import PromptLoader
from lightning_cgrpo.tasks.gsm8k.demonstrations import Manners
from lightning_cgrpo.tasks.gsm8k.generated_prompts import WordProblemDemonstrations, WordProblems


class WordProblemsDataModule(GroupDataModule):
    """Grade-school word problems of one to three steps, learned within minutes.

    Columns: ``prompt``, a plain text, and ``answer``. Splits share no question.

    Args:
        train_prompts: training problems, one epoch.
        val_prompts: validation problems.
        test_prompts: problems for test and prediction.
    """

    def __init__(
        self,
        prompts_per_update: int = 16,
        train_prompts: int = 16_000,
        val_prompts: int = 250,
        test_prompts: int = 1_000,
        eval_prompts: int = 125,
        max_eval_prompts: int | None = None,
        test_train_prompts: int = 0,
        seed: int | None = None,
    ) -> None:
        super().__init__(prompts_per_update, eval_prompts, max_eval_prompts, test_train_prompts, seed)
        self.counts = {"train": train_prompts, "val": val_prompts, "test": test_prompts, "predict": test_prompts}

    def source(self, split: Split) -> WordProblems:
        return WordProblems(self.counts[split], "test" if split == "predict" else split, self.seed)


class WordProblemDemonstrationsDataModule(WordProblemsDataModule):
    """Word problems for fine-tuning; training has the column ``completion``.

    Flawless short answers come first and teach arithmetic. Flawed answers leave constrained training something to
    do.

    Args:
        clean: share of training with flawless answers.
        manners: flaws of the other answers.
    """

    def __init__(
        self,
        prompts_per_update: int = 64,
        train_prompts: int = 128_000,
        clean: float = 0.5,
        manners: Manners = Manners(),  # noqa: B008 (frozen)
        val_prompts: int = 250,
        test_prompts: int = 1_000,
        eval_prompts: int = 125,
        seed: int | None = None,
    ) -> None:
        super().__init__(prompts_per_update, train_prompts, val_prompts, test_prompts, eval_prompts, seed=seed)
        self.clean, self.manners = clean, manners

    def train_dataloader(self) -> PromptLoader:
        source = WordProblemDemonstrations(self.counts["train"], "train", self.seed, self.clean, self.manners)
        return self._training(source, seed=None)  # not shuffled: the flawless answers come first
