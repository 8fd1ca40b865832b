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
    if violations >= prompts:
        return 1.0
    return float(betaincinv(violations + 1, prompts - violations, 1 - level))


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

    def too_many(violations: int) -> bool:
        return p_value_met(violations, prompts, threshold) > level

    if too_many(0):
        return -1
    fewest_too_many = least_number(too_many, prompts) or prompts
    return fewest_too_many - 1


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

    def fewest_prompts(violations: int) -> int:
        """The least number of prompts of which `violations` are few enough to certify; 0 if there is none."""

        def certifies(prompts: int) -> bool:
            return prompts > violations and p_value_met(violations, prompts, threshold) <= level

        return least_number(certifies, LARGEST) or 0

    def decides(number: int) -> bool:
        """True if the prompts that certify `number` - 1 violations have at most as many with probability `power`."""
        violations = number - 1
        prompts = fewest_prompts(violations)
        return prompts > 0 and bool(bdtr(violations, prompts, rate) >= power)

    # Search by the number of violations that are still certified, from 0, because `least_number` counts from 1.
    number = least_number(decides, MOST * threshold)
    if number is None:
        return None
    return fewest_prompts(number - 1) or None


def least_number(enough: Callable[[int], bool], most: float = MOST) -> int | None:
    """The least number from 1 to `most` that is `enough`, as are all larger numbers; None if there is none.

    Example:
        >>> least_number(lambda number: number**2 > 50), least_number(lambda number: False)
        (8, None)
        >>> least_number(lambda number: number > 8, 9), least_number(lambda number: number > 9, 9.5)
        (9, None)
    """
    largest = int(most)
    # Double until a number is enough.
    low, high = 0, 1
    while not enough(high):
        if high >= largest:
            return None
        low, high = high, min(2 * high, largest)
    # Bisection: `high` is enough, and `low` is not.
    while high - low > 1:
        middle = (low + high) // 2
        if enough(middle):
            high = middle
        else:
            low = middle
    return high
