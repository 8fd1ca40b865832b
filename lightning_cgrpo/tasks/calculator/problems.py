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
from lightning_cgrpo.tasks.gsm8k.word_problems import (
    GAIN,
    LOSS,
    NAMES,
    QUESTION,
    START,
    THINGS,
    Problem,
    Step,
    problem_at,
)

Chat = list[dict[str, Any]]
SMALLEST, LARGEST = 10, 99


@dataclass(frozen=True)
class Manners:
    """Shares of demonstrations with a habit."""

    direct: float = 0.25  # no call
    verbose: float = 0.5  # sentences around calls and answers
    stepwise: float = 0.5  # a call for each step, instead of one call for all steps
    invalid: float = 0.1  # a first call with an error, which the calculator's reply tells


def draw_problem(draw: np.random.Generator) -> Problem:
    """A problem of one or two steps, with all numbers and results from `SMALLEST` to `LARGEST`."""

    def choose(texts: list[str]) -> str:
        return texts[draw.integers(len(texts))]

    name = choose(NAMES)
    things = choose(THINGS)
    value = int(draw.integers(SMALLEST, LARGEST + 1))
    sentences = [choose(START).format(name=name, n=value, things=things)]
    steps = []
    for _ in range(draw.integers(1, 3)):
        room = {"+": LARGEST - value, "-": value - SMALLEST}
        operation = choose([sign for sign, most in room.items() if most >= SMALLEST])
        number = int(draw.integers(SMALLEST, room[operation] + 1))
        sentence = choose(GAIN if operation == "+" else LOSS)
        sentences.append(sentence.format(name=name, n=number))
        steps.append(Step(value, operation, number, name))
        value = steps[-1].result
    sentences.append(choose(QUESTION).format(name=name, things=things))
    return Problem(" ".join(sentences), tuple(steps), things)


def demonstrate(solved: Problem, manners: Manners, draw: np.random.Generator) -> Chat:
    """A random conversation that solves a problem: calls, results and the right answer."""
    direct, verbose, stepwise, invalid, kind = draw.random(5) < (*vars(manners).values(), 0.5)
    # 1. The expressions to calculate: one for each step, or one for all steps.
    if stepwise:
        expressions = [f"{step.left} {step.operation} {step.right}" for step in solved.steps]
    else:
        terms = [f"{step.operation} {step.right}" for step in solved.steps]
        expressions = [" ".join([str(solved.steps[0].left), *terms])]
    # 2. The calls, the first of them perhaps with a wrong name of the tool or of its argument.
    said = "Let me ask the calculator." if verbose else ""
    chat: Chat = []
    if invalid and not direct:
        if kind:
            name, key = "calculate", "expression"
            error = "Tool calculate not found."
        else:
            name, key = "calculator", "sum"
            error = "calculator: missing a required argument: 'expression'"
        chat += _call_and_result(said, name, {key: expressions[0]}, str({"error": error}))
    if not direct:
        for expression in expressions:
            chat += _call_and_result(said, "calculator", {"expression": expression}, calculator(expression))
    # 3. The answer.
    last = solved.steps[-1]
    answer = f"So now {last.name} has {last.result} {solved.things}." if verbose else str(last.result)
    return [*chat, {"role": "assistant", "content": answer}]


def _call_and_result(said: str, name: str, arguments: dict[str, str], result: str) -> Chat:
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return [
        {"role": "assistant", "content": said, "tool_calls": [call]},
        {"role": "tool", "name": name, "content": result},
    ]


class CalculatorProblems(WordProblems):
    """Problems whose ``prompt`` is a chat, with a further column ``completion``, a chat that solves them."""

    def problems(self, index: Tensor) -> list[Problem]:
        return [problem_at(self.seed, self.split, number, draw_problem) for number in index.tolist()]

    def groups(self, index: Tensor) -> PromptGroups:
        groups = super().groups(index)
        prompts: list[Chat] = []
        completions: list[Chat] = []
        for number, solved in zip(index.tolist(), self.problems(index), strict=True):
            prompts.append([{"role": "user", "content": solved.question}])
            # The stream is free, because demonstrations sample no rollout.
            draw = generator(self.seed, Stream.ROLLOUT, number)
            completions.append(demonstrate(solved, Manners(), draw))
        groups.columns["prompt"] = prompts
        groups.columns["completion"] = completions
        return groups
