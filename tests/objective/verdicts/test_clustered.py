"""Korn and Graubard's interval: identities, coverage by simulation, and the naive interval that fails."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from benchmarks.populations import CLUSTERED, UNEQUAL, few_bad
from benchmarks.verdicts import of_unequal
from lightning_cgrpo.objective.bound import Bound
from lightning_cgrpo.objective.verdicts.binomial import lower_bound, upper_bound
from lightning_cgrpo.objective.verdicts.clustered import ClusteredRate


def measured(counts, size):
    """From violations ``[N]`` out of `size` answers to each of N prompts."""
    prompts = len(counts)
    rate = counts.sum() / (prompts * size)
    error = math.sqrt(prompts / (prompts - 1) * ((counts - rate * size) ** 2).sum()) / (prompts * size)
    affected = int((counts > 0).sum()), int((counts < size).sum())
    return ClusteredRate(rate, error or None, prompts, prompts * size, *affected)


def test_copies_are_no_evidence():
    """Eight equal answers to each prompt say no more than one."""
    for level in (0.025, 0.05):
        once, copied = (measured(np.array([size] * 7 + [0] * 193), size).bounds(level) for size in (1, 8))
        exact = lower_bound(7, 200, level), upper_bound(7, 200, level)
        assert once == pytest.approx(exact, abs=2e-3) and copied == pytest.approx(exact, abs=2e-3)
        assert copied[1] == exact[1]


def test_few_violating_prompts_may_as_well_be_copies():
    """Two prompts with half of their answers in violation tell little of how much of a prompt violates."""
    found = measured(np.array([4, 4] + [0] * 48), 8)
    assert found.bounds(0.025)[1] == upper_bound(2, 50, 0.025)
    # With many, the bound is tighter than that of copies.
    many = measured(np.array([4] * 20 + [0] * 30), 8)
    assert many.rate < many.bounds(0.025)[1] < upper_bound(10, 50, 0.025)


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_a_rate_of_0_or_1_has_the_interval_of_its_prompts(rate):
    found = ClusteredRate(rate, None, 299, 299 * 8, *((299, 0) if rate else (0, 299)))
    assert found.bounds(0.05) == (lower_bound(rate * 299, 299, 0.05), upper_bound(rate * 299, 299, 0.05))
    assert found.bounds(0.05)[int(1 - rate)] == pytest.approx(0.99 if rate else 0.01, abs=5e-5)


@pytest.mark.parametrize("level", [0.025, 0.05])
@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.7])
@pytest.mark.parametrize("rate", [0.002, 0.01, 0.15])
def test_bounds_rarely_miss(rate, correlation, level):
    """Beta-binomial groups of 16 at 256 prompts, of which two or three violate at the least; pooled answers fail."""
    generator = np.random.default_rng(0)
    prompts, size, repetitions = 256, 16, 1_500
    missed = np.zeros(3)
    for _ in range(repetitions):
        own = np.full(prompts, rate)
        if correlation:
            concentration = 1 / correlation - 1
            own = generator.beta(rate * concentration, (1 - rate) * concentration, prompts)
        found = measured(generator.binomial(size, own), size)
        low, high = found.bounds(level)
        pooled = upper_bound(found.rate * found.opportunities, found.opportunities, level)
        missed += low > rate, high < rate, pooled < rate
    below, above, naive = missed / repetitions
    allowed = level + 0.01 + 3 * math.sqrt(level / repetitions)
    assert below < allowed and above < allowed
    if correlation == 0.7:
        assert naive > 4 * level


def missed(draw, rate, repetitions):
    """Shares of samples of unequal opportunities, as `draw` gives them, whose bounds are above and below the rate."""
    generator, missed = np.random.default_rng(0), np.zeros(2)
    for _ in range(repetitions):
        found = of_unequal(*draw(generator))
        low, high = found.bounds(0.025) if found else (0, 1)
        missed += low > rate, high < rate
    return missed / repetitions


@pytest.mark.parametrize("kind", [kind for kind in UNEQUAL if kind != "1 % very long"])
@pytest.mark.parametrize(("prompts", "rate"), [(20, 0.15), (200, 0.05), (200, 0.5)])
def test_bounds_rarely_miss_where_opportunities_differ(kind, prompts, rate):
    """As if opportunities were equal, up to 36 % of the upper bounds miss."""
    population = UNEQUAL[kind](rate)
    shares = missed(lambda generator: (*population.draw(generator, prompts), population.most), population.rate, 600)
    assert (shares < 0.035 + 3 * math.sqrt(0.025 / 600)).all()


def test_a_standard_error_of_few_long_answers_is_itself_uncertain():
    """Eight answers of 80 opportunities among 142 of 8 make the spread: its degrees of freedom are theirs."""
    opportunities = np.concatenate([np.full(8, 80.0), np.full(142, 8.0), np.full(42, 80.0), np.full(808, 8.0)])
    violations = np.where(np.arange(1_000) < 150, opportunities, 0.0)
    found = of_unequal(violations, opportunities, 80.0)
    squares = (violations - found.rate * opportunities) ** 2
    assert found.telling == pytest.approx(squares.sum() ** 2 / (squares**2).sum())  # 15 of 150 violating prompts
    sure = replace(found, telling=1_000.0)
    for known, wider in zip(sure.bounds(0.025), found.bounds(0.025), strict=True):
        assert abs(wider - found.rate) > 1.05 * abs(known - found.rate)


def test_too_few_prompts_for_answers_that_are_too_rare_to_be_sampled():
    """Of 200 answers, 13 % of samples hold none of the 1 % with 1,000 opportunities: the declared length tells."""
    bound = Bound(threshold=0.05)
    sampled = partial(ClusteredRate, 0.0, None, 200, 2_000.0, 0, 200, 0.0, 200.0)
    assert bound.word(sampled(10.0)) == "met"
    assert bound.word(sampled(1_000.0)) == "too few" and sampled(1_000.0).bounds(0.025)[1] > 0.5
    # A sample that could have shown it, but did not.
    assert bound.word(ClusteredRate(0.05, 0.01, 200, 2_000.0, 20, 190, 20.0, 190.0, 10.0)) == "undecided"
    assert bound.word(ClusteredRate(0.9, 0.01, 20, 20.0, 20, 10)) == "missed"


def test_one_answer_to_each_prompt_has_the_exact_bounds():
    for violating in (0, 1, 7, 50, 100):
        found = of_unequal(np.where(np.arange(100) < violating, 1.0, 0.0), np.ones(100), 1.0)
        exact = lower_bound(violating, 100, 0.025), upper_bound(violating, 100, 0.025)
        assert found.bounds(0.025) == pytest.approx(exact, abs=2e-3)


@pytest.mark.parametrize(("rate", "share"), [(0.0175, 0.0075), (0.03, 0.025)])
def test_bounds_rarely_miss_where_a_few_prompts_are_bad(rate, share):
    """Of 200 prompts, no bad one is sampled in 22 %, or two of five in 8 %; the error of the others says nothing."""
    population = few_bad(rate, share)
    assert (missed(lambda generator: (*population.draw(generator, 200), 8.0), rate, 400) <= 0.035).all()


@pytest.mark.parametrize("design", [name for name in CLUSTERED if "navtest" not in name])
def test_bounds_rarely_miss_where_prompts_belong_together(design):
    """One answer to each prompt; a cluster is one sample."""

    def draw(generator):
        violations, sizes = CLUSTERED[design].draw(generator, 0.05)
        return violations, sizes, sizes

    assert (missed(draw, 0.05, 400) <= 0.035).all()
