"""Exact bounds: scipy's test, published values, and probabilities summed over all outcomes."""

import math

import numpy as np
import pytest
from scipy.stats import binom, binomtest

from lightning_cgrpo.verdicts.binomial import (
    lower_bound,
    p_value_met,
    p_value_missed,
    prompts_needed,
    upper_bound,
)

CASES = [(0, 1), (0, 299), (3, 10), (10, 10), (17, 500), (499, 500), (1, 1)]


@pytest.mark.parametrize(("violations", "prompts"), CASES)
@pytest.mark.parametrize("level", [0.05, 0.01, 0.05 / 3])
def test_bounds_and_p_values_are_scipys(violations, prompts, level):
    def oracle(side, threshold=0.5):
        return binomtest(violations, prompts, threshold, alternative=side)

    assert upper_bound(violations, prompts, level) == pytest.approx(oracle("less").proportion_ci(1 - level).high)
    assert lower_bound(violations, prompts, level) == pytest.approx(oracle("greater").proportion_ci(1 - level).low)
    for threshold in (0.01, 0.3, 0.95):
        assert p_value_met(violations, prompts, threshold) == pytest.approx(oracle("less", threshold).pvalue)
        assert p_value_missed(violations, prompts, threshold) == pytest.approx(oracle("greater", threshold).pvalue)


def test_published_limits():
    """Clopper and Pearson's two-sided 95 % limits of 10 of 100: 4.90 % and 17.62 %; none of 30: 11.57 %."""
    assert lower_bound(10, 100, 0.025) == pytest.approx(0.0490, abs=5e-5)
    assert upper_bound(10, 100, 0.025) == pytest.approx(0.1762, abs=5e-5)
    assert upper_bound(0, 30, 0.025) == pytest.approx(0.1157, abs=5e-5)


@pytest.mark.parametrize("threshold", [0.01, 0.05, 0.5, 0.99])
def test_a_test_and_its_bound_agree(threshold):
    for prompts in (20, 299, 408):
        for violations in range(0, prompts + 1, 7):
            assert (p_value_met(violations, prompts, threshold) <= 0.05) == (
                upper_bound(violations, prompts, 0.05) <= threshold
            )


@pytest.mark.parametrize("violations", [0, 1, 5])
def test_a_threshold_of_zero_is_never_certified_and_refuted_by_one_violation(violations):
    assert p_value_met(violations, 5, 0.0) == 1
    assert p_value_missed(violations, 5, 0.0) == (0 if violations else 1)


@pytest.mark.parametrize(
    ("rate", "threshold", "level", "expected"),
    [(0, 0.01, 0.05, 299), (0, 0.05, 0.05, 59), (0, 0.01, 0.05 / 3, 408), (0, 0.05, 0.05 / 3, 80)],
)
def test_without_violations_the_logarithm_says_how_many(rate, threshold, level, expected):
    assert prompts_needed(rate, threshold, level) == expected == math.ceil(math.log(level) / math.log(1 - threshold))


@pytest.mark.parametrize(("rate", "threshold"), [(0.004, 0.01), (0.02, 0.01), (0.13, 0.15), (0.2, 0.15), (0.3, 0.0)])
def test_the_needed_prompts_decide_with_the_promised_power_and_fewer_do_not(rate, threshold):
    def power(prompts):
        outcomes = np.arange(prompts + 1)
        p_value = p_value_met if rate < threshold else p_value_missed
        decides = [p_value(int(x), prompts, threshold) <= 0.05 for x in outcomes]
        return binom.pmf(outcomes, prompts, rate)[decides].sum()

    needed = prompts_needed(rate, threshold, 0.05)
    assert power(needed) >= 0.8
    # Power is a saw tooth: all fewer prompts are tried where there are few, else some.
    for prompts in range(1, needed) if needed < 300 else np.linspace(1, needed - 1, 40).astype(int):
        assert power(int(prompts)) < 0.8


def test_at_the_threshold_no_number_decides():
    assert prompts_needed(0.01, 0.01, 0.05) is None and prompts_needed(0.0, 0.0, 0.05) is None
    assert prompts_needed(0.01 - 1e-9, 0.01, 0.05) is None
