"""Tests of a rate with any number of opportunities per answer, such as steps in violation / steps.

The rate Σ c / Σ o is below d if and only if the mean of c - d·o is below 0. A gambler bets on every prompt that c - d·o
is negative. Each stake follows from the earlier prompts alone, so at a rate of d or more the capital is a nonnegative
supermartingale from 1. Such a capital ever reaches 20 with probability at most 1/20 (Ville, 1939), so the test holds
after every prompt, and the largest capital counts (Waudby-Smith and Ramdas, *Estimating means of bounded random
variables by betting*, 2024; the stake is their approximate GRAPA). Nothing is assumed but independent samples and the
largest number of opportunities of a sample. A random order, drawn before the answers, replaces that of the data, which
may be sorted.

A refutation bets half of the capital so, and half at constant stakes, because a violation may pay the stake many times
over: at a threshold of 0.01 three prompts of violations alone multiply the capital by 200 with predictable stakes, and
by up to a million with the largest stake. A mean of such capitals is such a capital, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logsumexp

from lightning_cgrpo.objective.verdicts.binomial import POWER, least_number

Counts = NDArray[np.float64]

LARGEST_STAKE = 0.95
"""Share of the capital that the longest sample of violations may cost."""
PRIOR = 5.0
"""Prompts that the first stakes' mean and square count as."""
LEARNED = 4_096
"""Prompts of equal payoff after which `p_value_clean` takes the stake to be constant."""
STAKES = LARGEST_STAKE * 0.8 ** np.arange(24)
"""Constant stakes of which `prompts_needed` takes the best."""
REFUTING = LARGEST_STAKE * 0.5 ** np.arange(8)
"""Constant stakes of a refutation, with equal parts of half of the capital."""
LEARNING = 0.5
"""Logarithm of the capital that the best constant stake wins beside the other stakes in a refutation."""
GRID = expit(np.linspace(-14, 14, 57))
"""Rates between which `upper_bound` searches, because evidence need not fall everywhere with the rate."""
NORMAL = {0.5: 0.0, POWER: 0.8416212}
"""Quantiles of the normal distribution."""


def p_value_met(violations: Counts, opportunities: Counts, most: float, threshold: float) -> float:
    """Evidence that violations / opportunities is below the threshold.

    Args:
        violations: of each sample ``[N]``.
        opportunities: of each sample ``[N]``, at most `most`.
    """
    if threshold <= 0:
        return 1.0
    payoffs = _in_random_order(_payoffs(violations, opportunities, most, threshold))
    return _p_value(np.cumsum(_log_gains(payoffs, threshold)))


def p_value_missed(violations: Counts, opportunities: Counts, most: float, threshold: float) -> float:
    """Evidence that violations / opportunities is above the threshold."""
    within = 1 - threshold
    if within <= 0:
        return 1.0
    payoffs = _in_random_order(_payoffs(opportunities - violations, opportunities, most, within))
    # Logarithms of the capital after each sample: of half that bets predictable stakes, and of half in equal parts
    # that bet constant stakes.
    predictable = np.cumsum(_log_gains(payoffs, within))
    constant_parts = np.cumsum(np.log1p(REFUTING[:, None] * payoffs), axis=-1)  # [stakes, N]
    constant = logsumexp(constant_parts, axis=0) - math.log(len(REFUTING))
    return _p_value(np.logaddexp(predictable, constant) - math.log(2))


def p_value_clean(prompts: int, share: float, threshold: float) -> float:
    """`p_value_met` of `prompts` answers without a violation, each with `share` of the most opportunities."""
    if threshold <= 0:
        return 1.0
    # After the first prompts the stake is constant, so each further prompt gains as much as the last.
    first = min(prompts, LEARNED)
    payoffs = _payoffs(np.zeros(first), np.full(first, share), 1.0, threshold)
    gains = _log_gains(payoffs, threshold)
    capital = gains.sum() + (prompts - first) * gains[-1]
    return _p_value(np.array([capital]))


def upper_bound(violations: Counts, opportunities: Counts, most: float, level: float) -> float:
    """The rate's one-sided upper bound of confidence 1 - `level`: the test rejects every higher rate."""

    def is_rejected(rate: float) -> bool:
        return p_value_met(violations, opportunities, most, rate) <= level

    return _highest_possible_rate(is_rejected)


def lower_bound(violations: Counts, opportunities: Counts, most: float, level: float) -> float:
    """The rate's one-sided lower bound of confidence 1 - `level`."""

    def is_rejected(clean_rate: float) -> bool:
        return p_value_missed(violations, opportunities, most, 1 - clean_rate) <= level

    return 1 - _highest_possible_rate(is_rejected)


def _highest_possible_rate(is_rejected: Callable[[float], bool]) -> float:
    """The rate above which all are rejected."""
    # The last rate of the grid that is not rejected, and the next.
    edges = [0.0, *GRID.tolist(), 1.0]
    last_possible = 0
    for place, rate in enumerate(GRID, start=1):
        if not is_rejected(float(rate)):
            last_possible = place
    low, high = edges[last_possible], edges[last_possible + 1]
    # Bisection between both.
    for _ in range(40):
        middle = (low + high) / 2
        if is_rejected(middle):
            high = middle
        else:
            low = middle
    return high


def prompts_needed(
    violations: Counts, opportunities: Counts, most: float, threshold: float, level: float, power: float = POWER
) -> int | None:
    """Prompts like these with which the test decides, with probability about `power`; None if no feasible number does.

    The logarithm of the capital grows as a sum over prompts; its spread is taken to be normal. The prior's prompts are
    added, because the first stakes are not the best, and `LEARNING` where the rate is to be refuted.
    """
    total = opportunities.sum()
    if total == 0 or violations.sum() == threshold * total:
        return None
    # The logarithm of the capital that decides. A rate above the threshold is refuted, by its clean opportunities.
    deciding = -math.log(level)
    if violations.sum() > threshold * total:
        deciding += LEARNING
        violations = opportunities - violations
        threshold = 1 - threshold
    if threshold <= 0:
        return None
    payoffs = _payoffs(violations, opportunities, most, threshold)
    gains = np.log1p(STAKES[:, None] * payoffs)  # [stakes, N]
    mean = gains.mean(-1)
    spread = gains.std(-1)

    def decides(prompts: int) -> bool:
        capitals = prompts * mean - NORMAL[power] * math.sqrt(prompts) * spread
        return bool(capitals.max() >= deciding)

    prompts = least_number(decides)
    if prompts is None:
        return None
    # Long answers teach the stake sooner.
    return prompts + math.ceil(PRIOR * most * len(violations) / total)


def _in_random_order(payoffs: Counts) -> Counts:
    """An order drawn before the answers, because the data may be sorted."""
    return payoffs[np.random.default_rng(0).permutation(len(payoffs))]


def _payoffs(violations: Counts, opportunities: Counts, most: float, threshold: float) -> Counts:
    """Gain of a stake of 1 by each sample ``[N]``, at least -1, with a mean of at most 0 from the threshold on."""
    largest = max((1 - threshold) * most, 1e-12)
    payoffs: Counts = np.maximum((threshold * opportunities - violations) / largest, -1.0)
    return payoffs


def _log_gains(payoffs: Counts, threshold: float) -> Counts:
    """Logarithm of the capital's growth ``[N]``; stakes are mean / mean square of the earlier payoffs."""
    # Sums over the earlier payoffs and the prior's.
    payoff_sum = PRIOR * threshold / 4 + np.cumsum(payoffs) - payoffs
    square_sum = PRIOR * threshold / 2 + np.cumsum(payoffs**2) - payoffs**2
    stakes = np.clip(payoff_sum / np.maximum(square_sum, 1e-300), 0, LARGEST_STAKE)
    gains: Counts = np.log1p(stakes * payoffs)
    return gains


def _p_value(capitals: Counts) -> float:
    """The reciprocal of the largest capital; `capitals` are logarithms after each sample."""
    largest = max(float(capitals.max(initial=0.0)), 0.0)
    return math.exp(-largest)
