"""Word problems in GSM8K's format, learned in minutes."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from zlib import crc32

import numpy as np

from lightning_cgrpo.core.randomness import Stream, generator

LARGEST = 99
SPLITS = {"train": range(2, 16), "val": range(1), "test": range(1, 2)}
"""Checksums (modulo `CLASSES`) of questions, so that splits share no question."""
CLASSES = 16

NAMES = ["Tom", "Ann", "Ben", "Mia", "Sam", "Eva", "Leo", "Zoe", "Max", "Ida", "Kim", "Ali"]
THINGS = ["apples", "books", "cards", "coins", "eggs", "pens", "shells", "stamps", "toys", "nuts", "balls", "cakes"]
PLACES = ["boxes", "bags", "rows", "packs"]
START = ["{name} has {n} {things}.", "{name} finds {n} {things}.", "{name} starts with {n} {things}."]
GROUPS = [
    "{name} has {n} {places} with {m} {things} each.",
    "{name} buys {n} {places} of {m} {things}.",
    "{name} fills {n} {places} with {m} {things} each.",
]
GAIN = [
    "{name} buys {n} more.",
    "Then {name} gets {n} more.",
    "A friend gives {name} {n} more.",
    "{name} finds {n} more.",
]
LOSS = ["{name} gives away {n}.", "Then {name} loses {n}.", "{name} sells {n} of them.", "A friend takes {n} of them."]
TIMES = ["{other} has {n} times as many.", "{other} has {n} times as many as {name}."]
QUESTION = [
    "How many {things} does {name} have?",
    "How many {things} does {name} have now?",
    "How many does {name} have?",
]

OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul}


@dataclass(frozen=True)
class Step:
    """``left operation right``: the things that `name` then has."""

    left: int
    operation: str
    right: int
    name: str

    @property
    def result(self) -> int:
        return int(OPERATIONS[self.operation](self.left, self.right))


@dataclass(frozen=True)
class Problem:
    """A question and its solution."""

    question: str
    steps: tuple[Step, ...]
    things: str

    @property
    def result(self) -> int:
        return self.steps[-1].result


def problem_at(
    seed: int, split: str, index: int, drawn_by: Callable[[np.random.Generator], Problem] | None = None
) -> Problem:
    """The problem at an index of a split; questions may repeat within a split.

    Splits share no question, whatever the seeds.

    Args:
        drawn_by: draws any problem; by default of one to three steps with numbers up to `LARGEST`.
    """
    draw = generator(seed, Stream.PROMPTS, list(SPLITS).index(split), index)
    draw_any = _draw_problem if drawn_by is None else drawn_by
    while True:
        problem = draw_any(draw)
        if crc32(problem.question.encode()) % CLASSES in SPLITS[split]:
            return problem


def _draw_problem(draw: np.random.Generator) -> Problem:
    def choose(texts: list[str]) -> str:
        return texts[draw.integers(len(texts))]

    name, other = (NAMES[i] for i in draw.choice(len(NAMES), 2, replace=False))
    things = choose(THINGS)
    places = choose(PLACES)
    count = int(draw.integers(1, 4))
    # 1. A number of things, also as a product.
    steps: list[Step] = []
    if draw.random() < 0.3:
        groups = int(draw.integers(2, 7))
        each = int(draw.integers(2, 10))
        sentences = [choose(GROUPS).format(name=name, n=groups, m=each, places=places, things=things)]
        steps.append(Step(groups, "*", each, name))
        value = groups * each
    else:
        value = int(draw.integers(2, 21))
        sentences = [choose(START).format(name=name, n=value, things=things)]
    # 2. Further steps, each drawn again until it fits; only one of all steps multiplies.
    multiplied = bool(steps)
    while len(steps) < count:
        operation = choose(["+", "-", "*"])
        if operation == "*" and (multiplied or value * 2 > LARGEST):
            continue
        if (operation == "+" and value >= LARGEST) or (operation == "-" and value < 2):
            continue
        if operation == "+":
            number = int(draw.integers(1, min(12, LARGEST - value) + 1))
            sentences.append(choose(GAIN).format(name=name, n=number))
        elif operation == "-":
            number = int(draw.integers(1, min(12, value - 1) + 1))
            sentences.append(choose(LOSS).format(name=name, n=number))
        else:
            number = int(draw.integers(2, min(3, LARGEST // value) + 1))
            sentences.append(choose(TIMES).format(name=name, other=other, n=number))
            name, other = other, name
            multiplied = True
        steps.append(Step(value, operation, number, name))
        value = steps[-1].result
    sentences.append(choose(QUESTION).format(name=name, things=things))
    return Problem(" ".join(sentences), tuple(steps), things)
