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
    # From the smallest p-value to the largest, each test at a higher level than the one before.
    order = sorted(range(len(p_values)), key=lambda test: p_values[test])
    results: dict[int, tuple[bool, float]] = {}
    rejecting = True
    test_level = level / max(len(p_values), 1)
    for rank, test in enumerate(order):
        if rejecting:
            test_level = level / (len(p_values) - rank)
            rejecting = p_values[test] <= test_level
        # Every test after the first failure fails at that failure's level.
        results[test] = (rejecting, test_level)
    return [results[test] for test in range(len(p_values))]
