"""Rates over steps: exact expectations, agreement of test and bound, and error rates by simulation."""

import itertools

import numpy as np
import pytest

from lightning_cgrpo.objective.verdicts import binomial
from lightning_cgrpo.objective.verdicts.ratio import (
    PRIOR,
    lower_bound,
    p_value_clean,
    p_value_met,
    p_value_missed,
    prompts_needed,
    upper_bound,
)


def episodes(generator, prompts, rate, most=20):
    """Episodes of 4 to 20 steps; a tenth of the episodes have all of the violations, some of them long."""
    opportunities = generator.integers(4, most + 1, prompts).astype(float)
    within = np.where(generator.random(prompts) < 0.1, 10 * rate, 0.0)
    return generator.binomial(opportunities.astype(int), within).astype(float), opportunities


def test_at_the_threshold_no_capital_is_expected_to_grow():
    """Summed over all outcomes of 3 prompts, whose rate is the threshold exactly, in plain loops."""
    outcomes = {(2.0, 4.0): 0.1, (0.0, 4.0): 0.5, (0.0, 2.0): 0.2, (1.0, 1.0): 0.2}
    threshold = sum(c * p for (c, _), p in outcomes.items()) / sum(o * p for (_, o), p in outcomes.items())
    for missed in (False, True):
        d = 1 - threshold if missed else threshold
        expected = 0.0
        for drawn in itertools.product(outcomes, repeat=3):
            bet, mean, square, largest = 1.0, PRIOR * d / 4, PRIOR * d / 2, 1.0
            constant = np.ones(8)
            for number in np.random.default_rng(0).permutation(3):
                c, o = drawn[number]
                payoff = (d * o - (o - c if missed else c)) / ((1 - d) * 4)
                bet *= 1 + min(max(mean / square, 0), 0.95) * payoff
                constant *= 1 + 0.95 * 0.5 ** np.arange(8) * payoff
                capital = (bet + constant.mean()) / 2 if missed else bet
                mean, square, largest = mean + payoff, square + payoff**2, max(largest, capital)
            assert capital >= 0
            expected += np.prod([outcomes[one] for one in drawn]) * capital
            p_value = p_value_missed if missed else p_value_met
            assert p_value(*np.array(drawn).T, 4, threshold) == pytest.approx(1 / largest)
        assert expected == pytest.approx(1)


@pytest.mark.parametrize(
    ("prompts", "looks"), [(200, 1_000), *(pytest.param(n, 4_000, marks=pytest.mark.slow) for n in (50, 500))]
)
def test_a_rate_is_certified_falsely_as_rarely_as_promised_also_where_the_data_is_sorted(prompts, looks):
    """At a rate that is the threshold exactly; sorted, the clean prompts come first."""
    generator, false = np.random.default_rng(0), np.zeros(3)
    for _ in range(looks):
        violations, opportunities = episodes(generator, prompts, 0.05)
        clean_first = np.argsort(violations)
        false[0] += p_value_met(violations, opportunities, 20, 0.05) <= 0.05
        false[1] += p_value_met(violations[clean_first], opportunities[clean_first], 20, 0.05) <= 0.05
        false[2] += p_value_missed(violations, opportunities, 20, 0.05) <= 0.05
    assert (false / looks <= 0.05).all()


@pytest.mark.parametrize("share, threshold, prompts", [(1.0, 0.01, 338), (0.5, 0.01, 674)])
def test_few_clean_prompts_certify(share, threshold, prompts):
    """Within 6 % of the least of any valid test, 321 and 639 at the level of 0.04."""
    assert p_value_clean(prompts, share, threshold) <= 0.04 < p_value_clean(prompts - 1, share, threshold)
    violations, opportunities = np.zeros(prompts), np.full(prompts, 40 * share)
    assert p_value_met(violations, opportunities, 40, threshold) == pytest.approx(
        p_value_clean(prompts, share, threshold)
    )


def test_the_bound_inverts_the_test():
    violations, opportunities = episodes(np.random.default_rng(0), 500, 0.02)
    high = upper_bound(violations, opportunities, 20, 0.05)
    low = lower_bound(violations, opportunities, 20, 0.05)
    assert low < violations.sum() / opportunities.sum() < high
    assert p_value_met(violations, opportunities, 20, high + 1e-6) <= 0.05
    assert p_value_met(violations, opportunities, 20, high - 1e-6) > 0.05
    assert p_value_missed(violations, opportunities, 20, low - 1e-6) <= 0.05
    assert p_value_missed(violations, opportunities, 20, low + 1e-6) > 0.05


def test_single_opportunities_lose_little_to_the_exact_test():
    """Without violations, the price is the share of the capital that is never staked."""
    for prompts in (299, 600):
        violations, opportunities = np.zeros(prompts), np.ones(prompts)
        exact = binomial.p_value_met(0, prompts, 0.01)
        assert exact <= p_value_met(violations, opportunities, 1, 0.01) <= 2 * exact


def test_extremes():
    everything = np.full(3, 20.0)
    assert p_value_met(everything, everything, 20, 0.01) == 1 and p_value_met(0 * everything, everything, 20, 0) == 1
    # No valid test is below the probability of three such prompts at the threshold.
    assert 0.01**3 < p_value_missed(everything, everything, 20, 0.01) < 1e-4
    assert p_value_missed(everything, everything, 20, 1) == 1 and p_value_missed(0 * everything, everything, 20, 0) == 1
    assert prompts_needed(everything, everything, 20, 1.0, 0.05) is None
    assert upper_bound(everything, everything, 20, 0.05) == 1


def test_a_higher_probability_to_decide_needs_more_prompts():
    counts = episodes(np.random.default_rng(0), 1_000, 0.02)
    assert 0 < prompts_needed(*counts, 20, 0.05, 0.05, 0.5) < prompts_needed(*counts, 20, 0.05, 0.05, 0.8)


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.01, 0.09])
def test_the_needed_prompts_decide_about_as_often_as_promised(rate):
    generator = np.random.default_rng(0)
    needed = prompts_needed(*episodes(generator, 100_000, rate), 20, 0.05, 0.05)
    p_value = p_value_met if rate < 0.05 else p_value_missed
    decided = sum(p_value(*episodes(generator, needed, rate), 20, 0.05) <= 0.05 for _ in range(500))
    assert 0.72 < decided / 500 < 0.92
