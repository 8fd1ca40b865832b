"""Prompts of word problems, and demonstrations."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from lightning_cgrpo.core.prompts.source import PromptSource
from lightning_cgrpo.core.randomness import Stream, generator
from lightning_cgrpo.core.rollout import PromptGroups
from lightning_cgrpo.tasks.gsm8k.demonstrations import CLEAN, Manners, demonstrate
from lightning_cgrpo.tasks.gsm8k.word_problems import Problem, problem_at


@dataclass(eq=False)
class WordProblems(PromptSource):
    """Word problems with the columns ``prompt``, ``answer`` and ``steps``, the number of steps to the answer."""

    count: int
    split: str
    seed: int
    endless = True

    def __len__(self) -> int:
        return self.count

    def problems(self, index: Tensor) -> list[Problem]:
        return [problem_at(self.seed, self.split, number) for number in index.tolist()]

    def groups(self, index: Tensor) -> PromptGroups:
        problems = self.problems(index)
        return PromptGroups(
            index,
            {
                "prompt": [f"{problem.question}\n" for problem in problems],
                "answer": [str(problem.result) for problem in problems],
                "steps": [len(problem.steps) for problem in problems],
            },
        )


class WordProblemDemonstrations(WordProblems):
    """Word problems with a further column, ``completion``: flawless in the first half, of all manners in the second."""

    def groups(self, index: Tensor) -> PromptGroups:
        groups = super().groups(index)
        completions = []
        for number, solved in zip(index.tolist(), self.problems(index), strict=True):
            manners = CLEAN if number < self.count / 2 else Manners()
            # The stream is free, because demonstrations sample no rollout.
            draw = generator(self.seed, Stream.ROLLOUT, number)
            completions.append(demonstrate(solved, manners, draw))
        groups.columns["completion"] = completions
        return groups
