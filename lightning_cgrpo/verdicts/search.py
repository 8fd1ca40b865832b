"""The least number of prompts that is enough."""

from __future__ import annotations

from collections.abc import Callable

MOST = 10_000_000
"""Largest number of prompts that is feasible; a rate nearer to its threshold counts as undecidable."""


def least(enough: Callable[[int], bool], most: float = MOST) -> int | None:
    """The least number from 1 that is `enough`, as are all larger numbers; None if it is above about `most`.

    Example:
        >>> least(lambda number: number**2 > 50), least(lambda number: False)
        (8, None)
    """
    high = 1
    while not enough(high):
        high *= 2
        if high > most:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
