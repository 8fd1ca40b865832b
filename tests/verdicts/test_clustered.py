"""Korn and Graubard's interval: identities, coverage by simulation, and the naive interval that fails."""

import math

import numpy as np
import pytest
from scipy.stats import t

from lightning_cgrpo.verdicts.binomial import lower_bound, upper_bound
from lightning_cgrpo.verdicts.clustered import ClusteredRate


def measured(counts, size):
    """From violations ``[N]`` out of `size` answers to each of N prompts."""
    prompts = len(counts)
    rate = counts.sum() / (prompts * size)
    error = math.sqrt(prompts / (prompts - 1) * ((counts - rate * size) ** 2).sum()) / (prompts * size)
    return ClusteredRate(rate, error or None, prompts, prompts * size)


def test_copies_are_no_evidence():
    """Eight equal answers to each prompt say no more than one."""
    once, copied = (measured(np.array([size] * 7 + [0] * 193), size) for size in (1, 8))
    assert copied.effective == pytest.approx(199)
    # Korn and Graubard charge for estimating the design effect from 200 prompts.
    charge = (t.ppf(0.975, 1599) / t.ppf(0.975, 199)) ** 2
    assert copied.bounds(0.025)[1] == pytest.approx(upper_bound(7 / 200 * 199 * charge, 199 * charge, 0.025), abs=1e-9)
    assert copied.bounds(0.025)[1] >= once.bounds(0.025)[1]


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_a_rate_of_0_or_1_has_the_interval_of_its_prompts(rate):
    found = ClusteredRate(rate, None, 299, 299 * 8)
    assert found.bounds(0.05) == (lower_bound(rate * 299, 299, 0.05), upper_bound(rate * 299, 299, 0.05))
    assert found.bounds(0.05)[int(1 - rate)] == pytest.approx(0.99 if rate else 0.01, abs=5e-5)


@pytest.mark.slow
@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.7])
@pytest.mark.parametrize("rate", [0.01, 0.15])
def test_coverage(rate, correlation):
    """Beta-binomial groups of 8: about 95 %, or 92 % where few prompts violate; the naive interval is far off."""
    generator = np.random.default_rng(0)
    prompts, size, repetitions = 250, 8, 4_000
    covered = naive = 0
    for _ in range(repetitions):
        if correlation:
            concentration = 1 / correlation - 1
            own = generator.beta(rate * concentration, (1 - rate) * concentration, prompts)
        else:
            own = np.full(prompts, rate)
        found = measured(generator.binomial(size, own), size)
        low, high = found.bounds(0.025)
        covered += low <= rate <= high
        naive += abs(found.rate - rate) <= 1.959964 * math.sqrt(found.rate * (1 - found.rate) / (prompts * size))
    assert covered / repetitions > (0.91 if (rate, correlation) == (0.01, 0.7) else 0.94)
    if correlation == 0.7:
        assert naive / repetitions < 0.75
