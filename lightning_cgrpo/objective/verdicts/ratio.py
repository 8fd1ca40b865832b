"""Tests of a rate with any number of opportunities per answer, such as steps in violation / steps.

The rate Σ c / Σ o is below d if and only if the mean of c - d·o is below 0. A gambler who stakes a share of the capital
on every prompt of a fair game multiplies the capital by 20 with probability at most 1/20 (Waudby-Smith and Ramdas,
*Estimating means of bounded random variables by betting*, 2024). The mean over several stakes is such a capital, too.
Nothing is assumed but the largest number of opportunities of an answer.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from lightning_cgrpo.objective.verdicts.binomial import POWER, least

Counts = NDArray[np.float64]

STAKES = 0.5 ** np.arange(8)
"""Shares of the largest stake that can't go bankrupt."""
NORMAL = {0.5: 0.0, POWER: 0.8416212}
"""Quantiles of the normal distribution."""


def p_value_met(violations: Counts, opportunities: Counts, most: float, threshold: float) -> float:
    """Evidence that violations / opportunities is below the threshold.

    Args:
        violations: of each prompt ``[N]``.
        opportunities: of each prompt ``[N]``, at most `most`.
    """
    return _p_value(_gains(violations, opportunities, most, threshold).sum(-1)) if threshold > 0 else 1.0


def p_value_missed(violations: Counts, opportunities: Counts, most: float, threshold: float) -> float:
    """Evidence that violations / opportunities is above the threshold."""
    return p_value_met(opportunities - violations, opportunities, most, 1 - threshold)


def p_value_clean(prompts: int, share: float, threshold: float) -> float:
    """`p_value_met` of `prompts` answers without a violation, each with `share` of the most opportunities."""
    gains = _gains(np.zeros(1), np.full(1, share), 1.0, threshold)  # [stakes, 1]
    return _p_value(prompts * gains.sum(-1))


def upper_bound(violations: Counts, opportunities: Counts, most: float, level: float) -> float:
    """The rate's one-sided upper bound of confidence 1 - `level`: the least rate that the test rejects."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        rejected = p_value_met(violations, opportunities, most, middle) <= level
        low, high = (low, middle) if rejected else (middle, high)
    return high


def lower_bound(violations: Counts, opportunities: Counts, most: float, level: float) -> float:
    """The rate's one-sided lower bound of confidence 1 - `level`."""
    return 1 - upper_bound(opportunities - violations, opportunities, most, level)


def prompts_needed(
    violations: Counts, opportunities: Counts, most: float, threshold: float, level: float, power: float = POWER
) -> int | None:
    """Prompts like these with which the test decides, with probability about `power`; None if no feasible number does.

    The logarithm of the capital grows as a sum over prompts; its spread is taken to be normal.
    """
    total = opportunities.sum()
    if total == 0 or violations.sum() == threshold * total:
        return None
    if violations.sum() > threshold * total:
        violations, threshold = opportunities - violations, 1 - threshold
    if threshold <= 0:
        return None
    gains = _gains(violations, opportunities, most, threshold)
    # A stake that one answer makes bankrupt stays so, and has no spread.
    solvent = np.isfinite(gains.sum(-1))  # [stakes]
    finite = np.where(solvent[:, None], gains, 0)
    mean, spread = np.where(solvent, finite.mean(-1), -np.inf), finite.std(-1)

    def decides(prompts: int) -> bool:
        return _p_value(prompts * mean - NORMAL[power] * math.sqrt(prompts) * spread) <= level

    return least(decides)


def _gains(violations: Counts, opportunities: Counts, most: float, threshold: float) -> Counts:
    """Logarithm of each stake's gain by each prompt, ``[stakes, N]``."""
    largest = max((1 - threshold) * most, 1e-12)
    # A stake of 1 loses everything in an answer that is all violations, and as long as possible.
    with np.errstate(divide="ignore"):
        gains: Counts = np.log1p(-STAKES[:, None] * np.minimum((violations - threshold * opportunities) / largest, 1))
    return gains


def _p_value(capitals: Counts) -> float:
    """The reciprocal of the mean capital; `capitals` are logarithms ``[stakes]``."""
    return float(min(1.0, math.exp(min(0.0, math.log(len(STAKES)) - logsumexp(capitals)))))
