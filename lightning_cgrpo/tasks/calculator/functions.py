"""The tool, and the signal of right answers."""

from __future__ import annotations

import re
from typing import Any


def calculator(expression: str) -> str:
    """Calculate a sum or difference of integers.

    Args:
        expression: Such as 12 + 30 - 5.
    """
    if not re.fullmatch(r"\d{1,9}(?: [+-] \d{1,9})*", expression):
        raise ValueError(f"cannot read {expression}")
    terms = re.findall(r"([+-]?) ?(\d+)", expression)
    return str(sum(int(sign + number) for sign, number in terms))


def correct(completions: list[list[dict[str, Any]]], answer: list[str]) -> list[float]:
    """1 for conversations that end with a turn whose last integer is the answer.

    Example:
        >>> correct([[{"role": "assistant", "content": "Tom has 73 apples."}]], ["73"])
        [1.0]
    """
    return [float(_ends_with(messages[-1], value)) for messages, value in zip(completions, answer, strict=True)]


def _ends_with(message: dict[str, Any], value: str) -> bool:
    """True for a turn without calls whose last integer is `value`."""
    if "tool_calls" in message:
        return False
    return re.findall(r"-?\d+", message["content"])[-1:] == [value]
