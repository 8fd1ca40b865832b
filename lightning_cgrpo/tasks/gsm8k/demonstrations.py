"""Worked answers, GSM8K's own and imperfect."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from lightning_cgrpo.tasks.gsm8k.scoring import GOLD_MARK, gold_answer
from lightning_cgrpo.tasks.gsm8k.word_problems import Problem

_ANNOTATION = re.compile(r"<<[^<>]*>>")


def format_completion(thoughts: str, answer: str) -> str:
    """A text in the requested format."""
    return f"<think>{thoughts}</think>\n<answer>{answer}</answer>"


def gold_completion(answer: str) -> str:
    r"""A record's solution in the requested format, without calculator annotations.

    Example:
        >>> gold_completion("Tom has 3 + 4 = <<3+4=7>>7 apples.\n#### 7")
        '<think>Tom has 3 + 4 = 7 apples.</think>\n<answer>7</answer>'
    """
    solution = answer.partition(GOLD_MARK)[0]
    return format_completion(_ANNOTATION.sub("", solution).strip(), gold_answer(answer))


@dataclass(frozen=True)
class Manners:
    """Shares of demonstrations with a kind of reasoning or a flaw."""

    short: float = 0.22  # equations as reasoning
    none: float = 0.18  # no reasoning; the remaining reasoning is verbose
    damaged: float = 0.12  # a fault in the format
    unclean: float = 0.10  # decimals or a unit after the right answer


CLEAN = Manners(short=1.0, none=0.0, damaged=0.0, unclean=0.0)


def demonstrate(problem: Problem, manners: Manners, draw: np.random.Generator) -> str:
    """A random completion of a problem, with reasoning and flaws by `manners`."""
    kind, flaw, unclean = draw.random(3)
    # 1. The reasoning.
    equations = [f"{step.left}{step.operation}{step.right}={step.result}" for step in problem.steps]
    if kind < manners.short:
        thoughts = ", ".join(equations)
    elif kind < manners.short + manners.none:
        thoughts = ""
    else:
        lines = ["Let us go step by step."]
        for step, equation in zip(problem.steps, equations, strict=True):
            lines.append(f"So now {step.name} has {equation} {problem.things}.")
        thoughts = "\n".join(lines)
    # 2. The answer, and flaws in it and in the format.
    answer = str(problem.result)
    if unclean < manners.unclean:
        answer = draw.choice([f"{answer}.0", f"{answer} {problem.things}"])
    text = format_completion(thoughts, answer)
    if flaw < manners.damaged:
        damages = [
            text.removeprefix("<think>"),
            text.replace("</think>", ""),
            text.replace("</think>\n", "</think>"),
            text.removesuffix("</answer>"),
        ]
        text = str(draw.choice(damages))
    return text
