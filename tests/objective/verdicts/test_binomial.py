"""Exact bounds: scipy's test, published values, and probabilities summed over all outcomes."""

import numpy as np
import pytest
from scipy.stats import binom, binomtest

from lightning_cgrpo.objective.verdicts.binomial import (
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
    assert prompts_needed(0.333, 1 / 3, 0.05) is None, "the threshold's share of the most prompts is no integer"
