"""Rates over steps: exact expectations, agreement of test and bound, and error rates by simulation."""

import itertools

import numpy as np
import pytest

from lightning_cgrpo.objective.verdicts import binomial
from lightning_cgrpo.objective.verdicts.ratio import (
    STAKES,
    lower_bound,
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


def test_the_expected_capital_of_a_fair_game_is_one():
    """Summed over all outcomes of 3 prompts, whose rate is the threshold exactly."""
    outcomes = {(2.0, 4.0): 0.1, (0.0, 4.0): 0.5, (0.0, 2.0): 0.2, (1.0, 1.0): 0.2}
    threshold = sum(c * p for (c, _), p in outcomes.items()) / sum(o * p for (_, o), p in outcomes.items())
    expected = {False: 0.0, True: 0.0}
    for drawn in itertools.product(outcomes, repeat=3):
        violations, opportunities = np.array(drawn).T
        probability = np.prod([outcomes[one] for one in drawn])
        for missed in (False, True):
            c, d = (opportunities - violations, 1 - threshold) if missed else (violations, threshold)
            stakes = STAKES[:, None] / ((1 - d) * 4)
            capital = np.prod(1 - stakes * (c - d * opportunities), -1)
            assert (capital >= 0).all()
            expected[missed] += probability * capital.mean()
            p_value = (p_value_missed if missed else p_value_met)(violations, opportunities, 4, threshold)
            assert p_value == pytest.approx(min(1, 1 / capital.mean()))
    assert expected == {False: pytest.approx(1), True: pytest.approx(1)}


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
    """Without violations, the price is that of eight stakes at once."""
    for prompts in (299, 600):
        violations, opportunities = np.zeros(prompts), np.ones(prompts)
        exact = binomial.p_value_met(0, prompts, 0.01)
        assert exact <= p_value_met(violations, opportunities, 1, 0.01) <= 8 * exact


def test_extremes():
    everything = np.full(3, 20.0)
    assert p_value_met(everything, everything, 20, 0.01) == 1 and p_value_met(0 * everything, everything, 20, 0) == 1
    assert p_value_missed(everything, everything, 20, 0.01) < 1e-4
    assert prompts_needed(everything, everything, 20, 1.0, 0.05) is None
    assert upper_bound(everything, everything, 20, 0.05) == 1


def test_a_higher_probability_to_decide_needs_more_prompts():
    counts = episodes(np.random.default_rng(0), 1_000, 0.02)
    assert 0 < prompts_needed(*counts, 20, 0.05, 0.05, 0.5) < prompts_needed(*counts, 20, 0.05, 0.05, 0.8)


@pytest.mark.slow
@pytest.mark.parametrize("prompts", [50, 500])
def test_false_certificates_and_refutations_are_rare(prompts):
    """At a rate that is the threshold exactly."""
    generator, repetitions = np.random.default_rng(0), 4_000
    false = np.zeros(2)
    for _ in range(repetitions):
        violations, opportunities = episodes(generator, prompts, 0.05)
        false[0] += p_value_met(violations, opportunities, 20, 0.05) <= 0.05
        false[1] += p_value_missed(violations, opportunities, 20, 0.05) <= 0.05
    assert (false / repetitions < 0.05).all()


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.01, 0.09])
def test_the_needed_prompts_decide_about_as_often_as_promised(rate):
    generator = np.random.default_rng(0)
    needed = prompts_needed(*episodes(generator, 100_000, rate), 20, 0.05, 0.05)
    p_value = p_value_met if rate < 0.05 else p_value_missed
    decided = sum(p_value(*episodes(generator, needed, rate), 20, 0.05) <= 0.05 for _ in range(500))
    assert 0.72 < decided / 500 < 0.92
