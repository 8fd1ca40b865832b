"""Exact bounds and tests of a rate, from independent prompts with one answer each."""

from __future__ import annotations

from collections.abc import Callable

from scipy.special import bdtr, betaincinv

MOST = 10_000_000
"""Largest number of prompts that is feasible; a rate nearer to its threshold counts as undecidable."""
LARGEST = 2**30
"""Largest number of prompts that a search tries."""
POWER = 0.8
"""Probability with which `prompts_needed` prompts decide."""


def upper_bound(violations: float, prompts: float, level: float) -> float:
    """The rate's one-sided upper bound of confidence 1 - `level` (Clopper and Pearson, 1934).

    Counts may be fractions, as effective sample sizes are.

    Example:
        >>> round(upper_bound(0, 299, 0.05), 4)
        0.01
    """
    return 1.0 if violations >= prompts else float(betaincinv(violations + 1, prompts - violations, 1 - level))


def lower_bound(violations: float, prompts: float, level: float) -> float:
    """The rate's one-sided lower bound of confidence 1 - `level`."""
    return 1 - upper_bound(prompts - violations, prompts, level)


def p_value_met(violations: int, prompts: int, threshold: float) -> float:
    """P(at most `violations`), if the rate of violation were `threshold`: evidence that the rate is lower."""
    return float(bdtr(violations, prompts, threshold))


def p_value_missed(violations: int, prompts: int, threshold: float) -> float:
    """P(at least `violations`), if the rate of violation were `threshold`: evidence that the rate is higher."""
    return p_value_met(prompts - violations, prompts, 1 - threshold)


def most_certified(prompts: int, threshold: float, level: float) -> int:
    """The largest number of violations among `prompts` that certifies a threshold; -1 if none does.

    Example:
        >>> most_certified(299, 0.01, 0.05), most_certified(298, 0.01, 0.05)
        (0, -1)
    """
    if p_value_met(0, prompts, threshold) > level:
        return -1
    return (least(lambda violations: p_value_met(violations, prompts, threshold) > level, prompts) or prompts) - 1


def prompts_needed(rate: float, threshold: float, level: float, power: float = POWER) -> int | None:
    """Prompts with which a test of a policy with this rate of violation decides, with probability `power`.

    None if no feasible number does.

    Example:
        >>> prompts_needed(0, 0.01, 0.05), prompts_needed(0, 0.05, 0.05), prompts_needed(0, 0.01, 0.05 / 3)
        (299, 59, 408)
    """
    if rate > threshold:
        return prompts_needed(1 - rate, 1 - threshold, level, power)
    if rate == threshold or threshold == 0:
        return None

    def fewest(violations: int) -> int:
        """The least number of prompts of which `violations` are few enough."""
        return least(lambda n: n > violations and p_value_met(violations, n, threshold) <= level, LARGEST) or 0

    # One more than the violations that the number of prompts must allow.
    allowed = least(lambda n: fewest(n - 1) > 0 and bool(bdtr(n - 1, fewest(n - 1), rate) >= power), MOST * threshold)
    return None if allowed is None else fewest(allowed - 1) or None


def least(enough: Callable[[int], bool], most: float = MOST) -> int | None:
    """The least number from 1 to `most` that is `enough`, as are all larger numbers; None if there is none.

    Example:
        >>> least(lambda number: number**2 > 50), least(lambda number: False), least(lambda number: number > 8, 9)
        (8, None, 9)
    """
    low, high = 0, 1
    while not enough(high):
        if high >= most:
            return None
        low, high = high, min(2 * high, int(most))
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
