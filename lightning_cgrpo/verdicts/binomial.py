"""Exact bounds and tests of a rate, from independent prompts with one answer each."""

from __future__ import annotations

import math

from scipy.special import bdtr, betaincinv

POWER = 0.8
"""Probability with which `prompts_needed` prompts decide."""
MOST = 10_000_000
"""Largest answer of `prompts_needed`; a rate nearer to its threshold counts as undecidable."""


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

    def decided(violations: int) -> tuple[int, bool]:
        """The least number of prompts that certifies so many violations, and whether `power` is reached there."""
        prompts = _fewest(violations, threshold, level)
        return prompts, bool(bdtr(violations, prompts, rate) >= power)

    high = 1
    while not decided(high - 1)[1]:
        high *= 2
        if high / threshold > MOST:
            return None
    low = high // 2
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if decided(middle)[1] else (middle + 1, high)
    return decided(low)[0]


def _fewest(violations: int, threshold: float, level: float) -> int:
    """The least number of prompts of which `violations` are few enough."""
    low, high = violations, max(2 * violations, 1)
    while p_value_met(violations, high, threshold) > level:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if p_value_met(violations, middle, threshold) <= level else (middle, high)
    return high


def hoeffding_upper_bound(rate: float, prompts: int, level: float) -> float:
    """Hoeffding's upper bound (1963), which the exact bound replaces; for comparisons."""
    return rate + math.sqrt(math.log(1 / level) / (2 * prompts))
