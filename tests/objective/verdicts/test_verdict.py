"""Verdicts on several constraints."""

import math

import numpy as np
import pytest

from lightning_cgrpo.objective.verdicts.binomial import upper_bound
from lightning_cgrpo.objective.verdicts.verdict import Counts, PlannedTest, fewest_prompts, verdicts
from lightning_cgrpo.run.certificate import check_prompts
from lightning_cgrpo.settings.configuration import ConfigError


def single(violations, prompts, threshold):
    return Counts(np.repeat([1.0, 0.0], [violations, prompts - violations]), np.ones(prompts), threshold)


def test_holm_is_spent_on_the_strongest_first():
    found = verdicts({"a": single(0, 408, 0.01), "b": single(0, 369, 0.01), "c": single(0, 299, 0.01)}, 0.95)
    assert [verdict.decision for verdict in found.values()] == ["certified"] * 3
    # The strongest must pass a third of 5 %: 408 prompts, not 407.
    found = verdicts({name: single(0, 407, 0.01) for name in "abc"}, 0.95)
    assert {verdict.decision for verdict in found.values()} == {"undecided"}
    assert {verdict.needed for verdict in found.values()} == {408}


def test_bounds_hold_together():
    """A bound is the threshold where Holm's steps decided, and that of the last step elsewhere; see the simulation."""
    counts = {"low": single(3, 2_000, 0.01), "high": single(300, 2_000, 0.1), "at": single(20, 2_000, 0.01)}
    low, high, at = verdicts(counts, 0.95).values()
    assert (low.decision, high.decision, at.decision) == ("certified", "refuted", "undecided")
    assert low.upper == 0.01 and high.lower == 0.1
    assert at.upper == pytest.approx(upper_bound(20, 2_000, 0.05 / 2)) and at.needed is None and at.rate == 0.01
    assert low.needed is None and high.needed is None, "what is decided needs no more prompts"
    every = verdicts({name: single(3, 2_000, 0.01) for name in "abc"}, 0.95)
    assert [verdict.upper for verdict in every.values()] == [pytest.approx(upper_bound(3, 2_000, 0.05 / 3))] * 3


@pytest.mark.slow
def test_simultaneous_bounds_rarely_miss():
    """Of three rates, one of them at its threshold; bounds at the levels of Holm's steps missed in 7 %."""
    generator = np.random.default_rng(0)
    rates, prompts, missed = np.array([0.002, 0.004, 0.01]), 1_000, np.zeros(2)
    for counts in generator.binomial(prompts, rates, (2_000, 3)).tolist():
        found = verdicts({n: single(c, prompts, 0.01) for n, c in zip("abc", counts, strict=True)}, 0.95).values()
        missed += (
            any(rate > of.upper for rate, of in zip(rates, found, strict=True)),
            any(rate < of.lower for rate, of in zip(rates, found, strict=True)),
        )
    assert (missed / 2_000 < 0.05 + 3 * math.sqrt(0.05 / 2_000)).all()


def test_answers_to_which_a_constraint_does_not_apply_are_left_out_and_asked_for():
    applies = np.tile([1.0, 0.0], 100)
    (verdict,) = verdicts({"a": Counts(np.zeros(200), applies, 0.01)}, 0.95).values()
    assert verdict.upper == pytest.approx(upper_bound(0, 100, 0.05)) and verdict.needed == 2 * 299
    (never,) = verdicts({"a": Counts(np.zeros(5), np.zeros(5), 0.01)}, 0.95).values()
    assert (never.decision, never.rate, never.lower, never.upper, never.needed) == ("undecided", None, 0, 1, None)


def test_steps_are_no_prompts():
    """100 episodes of 80 clean steps are no 8,000 prompts."""
    steps = Counts(np.zeros(100), np.full(100, 80.0), 0.01, most=80)
    (verdict,) = verdicts({"lava": steps}, 0.95).values()
    assert verdict.decision == "undecided" and 299 <= verdict.needed <= 600
    many = Counts(np.zeros(verdict.needed), np.full(verdict.needed, 80.0), 0.01, most=80)
    assert verdicts({"lava": many}, 0.95)["lava"].decision == "certified"


def test_the_fewest_prompts_of_the_documentation():
    expected = {0.01: [299, 368, 408, 437], 0.05: [59, 72, 80, 86]}
    for threshold, numbers in expected.items():
        assert [fewest_prompts([PlannedTest(threshold)] * k, 0.95) for k in (1, 2, 3, 4)] == numbers
    assert fewest_prompts([PlannedTest(0.0)], 0.95) is None


def test_the_test_follows_from_the_declaration_and_not_from_the_sample():
    """One answer in 1,000 has 100 opportunities, all violations: a true rate of 0.091 at a threshold of 0.05."""
    generator = np.random.default_rng(0)
    false = 0
    for _ in range(300):
        long = generator.random(1_000) < 0.001
        counts = Counts(np.where(long, 100.0, 0.0), np.where(long, 100.0, 1.0), 0.05, most=100.0)
        false += counts.p_values()[0] <= 0.05
    assert false <= 300 * (0.05 + 3 * math.sqrt(0.05 * 0.95 / 300))


def test_the_fewest_prompts_of_a_betting_test_are_those_that_decide():
    for share in (1.0, 0.25):
        fewest = fewest_prompts([PlannedTest(0.01, share)], 0.95)
        enough = Counts(np.zeros(fewest), np.full(fewest, 80 * share), 0.01, most=80)
        fewer = Counts(np.zeros(fewest - 1), np.full(fewest - 1, 80 * share), 0.01, most=80)
        assert enough.p_values()[0] <= 0.05 < fewer.p_values()[0]


@pytest.mark.parametrize("threshold", [1e-9, 1e-12, 1e-17, 1e-300])
def test_a_threshold_that_no_feasible_number_of_prompts_certifies(threshold):
    for share in (None, 0.5):
        assert fewest_prompts([PlannedTest(threshold, share)], 0.96) is None
        with pytest.raises(ConfigError, match="a billion prompts are too few"):
            check_prompts({"lava": PlannedTest(threshold, share)}, 10_000, 0.96, None)
    for most in (1.0, 10.0):
        judged = verdicts({"lava": Counts(np.zeros(100), np.ones(100), threshold, most)}, 0.95)["lava"]
        assert (judged.decision, judged.needed) == ("undecided", None)


def test_bounds_where_all_are_refuted_or_all_certified_are_those_of_the_data():
    """And not the threshold, beside which the rate itself would be as good as decided."""
    for verdict in verdicts({"a": single(400, 1_000, 0.1), "b": single(300, 1_000, 0.1)}, 0.95).values():
        assert verdict.decision == "refuted" and 0.2 < verdict.lower < verdict.rate
    for verdict in verdicts({"a": single(10, 1_000, 0.1), "b": single(20, 1_000, 0.1)}, 0.95).values():
        assert verdict.decision == "certified" and verdict.rate < verdict.upper < 0.05
