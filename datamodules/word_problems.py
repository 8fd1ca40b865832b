"""Generated word problems, to train on within minutes; and demonstrations of how to answer them."""

from __future__ import annotations

from torch import Tensor

from lightning_cgrpo.datamodules.base import GroupDataModule, PromptLoader, PromptSource, Split
from lightning_cgrpo.randomness import Stream, generator
from lightning_cgrpo.rollout import PromptGroups
from lightning_cgrpo.tasks.gsm8k.demonstrations import CLEAN, Manners, demonstrate
from lightning_cgrpo.tasks.gsm8k.word_problems import Problem, problem


class WordProblemsDataModule(GroupDataModule):
    """Grade-school word problems of one to three steps; columns ``prompt``, a plain text, and ``answer``.

    Each follows from seed, split and index; no question is in two splits. See `tasks.gsm8k.word_problems`.

    Args:
        prompts_per_update: problems per update, over all processes.
        train_prompts: problems of the training set, one epoch.
        val_prompts: problems for validation.
        test_prompts: problems for testing and prediction.
        eval_prompts: problems per batch in evaluation.
        max_eval_prompts: evaluate on at most this many of a split's first problems; all by default.
        test_train_prompts: measure at most this many training problems, evenly spaced, in a test as well.
        seed: of problems and their order; by default the seed of `lightning.seed_everything`.
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

    def source(self, split: Split) -> PromptSource:
        return WordProblems(self.counts[split], "test" if split == "predict" else split, self.seed)


class WordProblemDemonstrationsDataModule(WordProblemsDataModule):
    """Word problems for supervised fine-tuning, in training with the column ``completion``.

    First come flawless short answers, from which arithmetic is learned; then answers with `manners` that leave
    constrained training something to do.

    Args:
        prompts_per_update: problems per update, over all processes.
        train_prompts: problems of the training set.
        clean: share of the training that the flawless answers take.
        manners: of the others.
        val_prompts: problems for validation.
        test_prompts: problems for testing and prediction.
        eval_prompts: problems per batch in evaluation.
        seed: of problems and demonstrations; by default the seed of `lightning.seed_everything`.
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
        source = Demonstrations(self.counts["train"], "train", self.seed, self.clean, self.manners)
        # In their order: no two are alike, and the flawless ones come first.
        return PromptLoader(source, self.prompts_per_update, start=self._updates_done, drop_last=True)


class WordProblems:
    """Problems by their index.

    Args:
        count: how many.
        split: ``train``, ``val`` or ``test``.
        seed: of the whole data set.
    """

    def __init__(self, count: int, split: str, seed: int) -> None:
        self.count, self.split, self.seed = count, split, seed

    def __len__(self) -> int:
        return self.count

    def problems(self, index: Tensor) -> list[Problem]:
        return [problem(self.seed, self.split, number) for number in index.tolist()]

    def groups(self, index: Tensor) -> PromptGroups:
        problems = self.problems(index)
        return PromptGroups(
            index, {"prompt": [f"{p.question}\n" for p in problems], "answer": [str(p.result) for p in problems]}
        )


class Demonstrations(WordProblems):
    """The same with a column ``completion``; the first share `clean` of them is flawless, see `Manners`."""

    def __init__(self, count: int, split: str, seed: int, clean: float, manners: Manners) -> None:
        super().__init__(count, split, seed)
        self.clean, self.manners = clean, manners

    def groups(self, index: Tensor) -> PromptGroups:
        groups = super().groups(index)
        groups.columns["completion"] = [
            demonstrate(
                p,
                CLEAN if number < self.clean * self.count else self.manners,
                generator(self.seed, Stream.ROLLOUT, number),  # an answer, and nothing else is drawn from it here
            )
            for number, p in zip(index.tolist(), self.problems(index), strict=True)
        ]
        return groups
