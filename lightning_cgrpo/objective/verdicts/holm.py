"""Several tests at once."""

from __future__ import annotations

from collections.abc import Sequence


def holm_levels(p_values: Sequence[float], level: float) -> list[tuple[bool, float]]:
    """Each test's rejection, and the level that its p-value is compared with, in the order of `p_values`.

    The probability of any false rejection is at most `level`, however the tests depend on each other (Holm, 1979).

    Example:
        >>> [rejected for rejected, _ in holm_levels([0.01, 0.04, 0.03, 0.005], 0.05)]
        [True, False, False, True]
    """
    order = sorted(range(len(p_values)), key=lambda number: p_values[number])
    tests: dict[int, tuple[bool, float]] = {}
    rejecting, compared = True, level / max(len(p_values), 1)
    for rank, number in enumerate(order):
        if rejecting:
            compared = level / (len(p_values) - rank)
            rejecting = p_values[number] <= compared
        # Every test after the first failure fails at that failure's level.
        tests[number] = (rejecting, compared)
    return [tests[number] for number in range(len(p_values))]
