"""Problems with numbers of two digits, and conversations that solve them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from lightning_cgrpo.core.randomness import Stream, generator
from lightning_cgrpo.core.rollout import PromptGroups
from lightning_cgrpo.tasks.calculator.functions import calculator
from lightning_cgrpo.tasks.gsm8k.generated_prompts import WordProblems
from lightning_cgrpo.tasks.gsm8k.word_problems import GAIN, LOSS, NAMES, QUESTION, START, THINGS, Problem, Step, problem

Chat = list[dict[str, Any]]
SMALLEST, LARGEST = 10, 99


@dataclass(frozen=True)
class Manners:
    """Shares of demonstrations with a habit."""

    direct: float = 0.25  # no call
    verbose: float = 0.5  # sentences around calls and answers
    stepwise: float = 0.5  # a call for each step, instead of one call for all steps
    invalid: float = 0.1  # a first call with an error, which the calculator's reply tells


def drawn(draw: np.random.Generator) -> Problem:
    """A problem of one or two steps, with all numbers and results from `SMALLEST` to `LARGEST`."""

    def one(choices: list[str]) -> str:
        return choices[draw.integers(len(choices))]

    name, things = one(NAMES), one(THINGS)
    value = int(draw.integers(SMALLEST, LARGEST + 1))
    sentences, steps = [one(START).format(name=name, n=value, things=things)], []
    for _ in range(draw.integers(1, 3)):
        room = {"+": LARGEST - value, "-": value - SMALLEST}
        operation = one([sign for sign, most in room.items() if most >= SMALLEST])
        number = int(draw.integers(SMALLEST, room[operation] + 1))
        sentences.append(one(GAIN if operation == "+" else LOSS).format(name=name, n=number))
        steps.append(Step(value, operation, number, name))
        value = steps[-1].result
    sentences.append(one(QUESTION).format(name=name, things=things))
    return Problem(" ".join(sentences), tuple(steps), things)


def demonstrate(solved: Problem, manners: Manners, draw: np.random.Generator) -> Chat:
    """A random conversation that solves a problem: calls, results and the right answer."""
    direct, verbose, stepwise, invalid, kind = draw.random(5) < (*vars(manners).values(), 0.5)
    if stepwise:
        expressions = [f"{s.left} {s.operation} {s.right}" for s in solved.steps]
    else:
        expressions = [" ".join([str(solved.steps[0].left), *(f"{s.operation} {s.right}" for s in solved.steps)])]
    said = "Let me ask the calculator." if verbose else ""
    chat: Chat = []
    if invalid and not direct:
        name, key = ("calculate", "expression") if kind else ("calculator", "sum")
        error = "Tool calculate not found." if kind else "calculator: missing a required argument: 'expression'"
        chat += _exchange(said, name, {key: expressions[0]}, str({"error": error}))
    for expression in () if direct else expressions:
        chat += _exchange(said, "calculator", {"expression": expression}, calculator(expression))
    last = solved.steps[-1]
    answer = f"So now {last.name} has {last.result} {solved.things}." if verbose else str(last.result)
    return [*chat, {"role": "assistant", "content": answer}]


def _exchange(said: str, name: str, arguments: dict[str, str], result: str) -> Chat:
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return [
        {"role": "assistant", "content": said, "tool_calls": [call]},
        {"role": "tool", "name": name, "content": result},
    ]


class CalculatorProblems(WordProblems):
    """Problems whose ``prompt`` is a chat, with a further column ``completion``, a chat that solves them."""

    def problems(self, index: Tensor) -> list[Problem]:
        return [problem(self.seed, self.split, number, drawn) for number in index.tolist()]

    def groups(self, index: Tensor) -> PromptGroups:
        groups, problems = super().groups(index), self.problems(index)
        groups.columns["prompt"] = [[{"role": "user", "content": p.question}] for p in problems]
        groups.columns["completion"] = [
            # The stream is free, because demonstrations sample no rollout.
            demonstrate(p, Manners(), generator(self.seed, Stream.ROLLOUT, number))
            for number, p in zip(index.tolist(), problems, strict=True)
        ]
        return groups
