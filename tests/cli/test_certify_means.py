"""Certificates of means: a bet on values in a declared range, shown in the signal's own unit."""

from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.populations import CLUSTERED
from lightning_cgrpo.cli.certify.look import _without_repeats
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.datamodules.certification import Certification
from lightning_cgrpo.objective.evaluation import CLUSTER, IDENTITY
from lightning_cgrpo.objective.objective import Constraint, Objective
from lightning_cgrpo.objective.verdicts.verdict import verdicts
from lightning_cgrpo.run.certificate import (
    Sample,
    _constraint_counts,
    _count_beyond_range,
    _violation_range,
    certificate_of,
    check_prompts,
    cluster_sizes,
    planned_tests,
)
from lightning_cgrpo.run.looks import Asked, Used
from lightning_cgrpo.settings.configuration import ConfigError
from tests.refusals import refused

RARE, ASKED = Objective("goal", {"c": Constraint(at_most=0.1)}), Asked(None, 0.95, 1, Used())


def rows_of(violations: Any, opportunities: Any = None, **more: torch.Tensor) -> dict[str, torch.Tensor]:
    """Sums by prompt, of constraint ``c``; by default one opportunity each."""
    values = torch.as_tensor(violations).double()
    ones = torch.ones_like(values)
    opportunities = ones if opportunities is None else torch.as_tensor(opportunities).double()
    rows = {"violations/c": values, "opportunities/c": opportunities, "faults/c": 0 * ones, "answers": ones}
    return rows | more


def counts_of(constraint: Constraint, rows: dict[str, torch.Tensor], longest: int | None = 80, whole: bool = True):
    return _constraint_counts(Objective("goal", {"c": constraint}), "c", rows, longest, whole)


def verdict(constraint: Constraint, values: np.ndarray):
    signed = -values if constraint.bound.lower else values
    found = verdicts({"c": counts_of(constraint, rows_of(signed))}, 0.95)["c"]
    least, width = _violation_range("c", constraint, 80)
    bounds = constraint.bound.shown_interval(least + width * found.lower, least + width * found.upper)
    return found.decision, constraint.bound.shown(least + width * found.rate), bounds


@pytest.mark.parametrize("word", ["mean_at_most", "mean_at_least"])
def test_decisions_and_bounds_are_in_the_signals_unit(word: str) -> None:
    values = np.random.default_rng(0).uniform(10, 30, 400)
    good = word == "mean_at_most"
    for bound, met in ((25.0, good), (15.0, not good)):
        decision, mean, (low, high) = verdict(Constraint(**{word: bound}, range=[0, 80]), values)
        assert decision == ("certified" if met else "refuted")
        assert mean == pytest.approx(values.mean()) and 15 < low < mean < high < 25
    assert verdict(Constraint(**{word: 20.0}, range=[0, 80]), values)[0] == "undecided"


def certified(constraint: Constraint, values: np.ndarray, steps: np.ndarray | None = None) -> bool:
    """As `verdict` decides, without its bounds, which take time; of sums over steps, if they are given."""
    return counts_of(constraint, rows_of(values, steps), whole=steps is None).p_values()[0] <= 0.05


def test_a_value_at_the_edge_of_its_range_is_within_it() -> None:
    """0.1 in float32 is above 0.1."""
    values = np.full(300, np.float32(0.1)).astype(float)
    assert values[0] > 0.1
    decision, mean, (low, high) = verdict(Constraint(mean_at_most=0.08, range=[0, 0.1]), values)
    assert decision == "refuted" and mean == pytest.approx(0.1) and low <= mean <= high + 1e-9
    for beyond, count in ((0.0, 0), (1e-6, 300)):
        assert _count_beyond_range(rows_of(values + beyond), "c", 0, 0.1) == count


def test_false_certificates_are_rare() -> None:
    """A policy with a skewed mean right at its bound: certified in at most 5 % of looks (400 looks, 3 errors)."""
    rng = np.random.default_rng(1)
    looks = [np.minimum(rng.geometric(1 / 20, 300), 80).astype(float) for _ in range(400)]
    bound = 20 * (1 - (1 - 1 / 20) ** 80)  # of a geometric distribution that is cut at 80
    constraint, easier = (Constraint(mean_at_most=factor * bound, range=[0, 80]) for factor in (1, 1.25))
    assert sum(certified(constraint, values) for values in looks) <= 400 * (0.05 + 3 * (0.05 * 0.95 / 400) ** 0.5)
    assert sum(certified(easier, values) for values in looks) > 350


def test_a_mean_over_steps_counts_long_answers_by_their_steps() -> None:
    """A mean of 0.64, since bad answers are twice as long: without their steps, 0.5 was certified in every look."""
    bad = np.random.default_rng(2).random(300) < 0.3
    constraint, easier = (Constraint(mean_at_most=bound, range=[0, 1]) for bound in (0.5, 0.8))
    rows = np.where(bad, 80, 40 * 0.35), np.where(bad, 80.0, 40.0)
    assert not certified(constraint, *rows) and certified(easier, *rows)


def test_a_mean_needs_a_range() -> None:
    message = refused(_violation_range, "score", Constraint(mean_at_most=3.0), 80)
    assert "try range: [LEAST, GREATEST] in the constraint" in message
    assert _violation_range("tokens", Constraint(mean_at_most=30.0), 80) == (0, 80)
    assert _violation_range("tokens", Constraint(mean_at_least=30.0), 80) == (-80, 80)
    assert _violation_range("lava", Constraint(at_most=0.1), 80) == (0, 1)


def test_values_beyond_the_range_count_as_its_edge() -> None:
    """A range that is too narrow certifies the mean of cut values alone, and the record tells how many were cut."""
    values = np.array([3.0, 21.0, 95.0] * 40)
    constraint = Constraint(mean_at_most=15.0, range=[0, 20])
    assert verdict(constraint, values) == verdict(constraint, values.clip(0, 20))
    for word, signed in (("mean_at_most", values), ("mean_at_least", -values)):
        objective = Objective("goal", {"c": Constraint(**{word: 15.0}, range=[0, 20])})
        found = certificate_of(Sample(rows_of(signed), "mine", 80), objective, ASKED)
        cut = "c is the mean of values cut to 0 to 20 (80 answers beyond count as its edge)"
        assert found["assumptions"][-1] == cut


@pytest.mark.parametrize(
    "design", ["groups of 5, the same answer, 400", "drives of 1 to 39 frames, correlation 0.3, 1,000"]
)
def test_prompts_that_belong_together_are_one_sample(design: str) -> None:
    """At the threshold, a look takes 400 answers of groups for independent and is wrong in a quarter of cases."""
    generator, false = np.random.default_rng(0), np.zeros(2)
    for _ in range(300):
        violations, sizes = CLUSTERED[design].draw(generator, 0.05)
        numbers = np.repeat(np.arange(len(sizes)), sizes.astype(int))
        answers = np.concatenate([np.arange(size) < bad for bad, size in zip(violations, sizes, strict=True)])
        sums = rows_of(answers), rows_of(answers, **{CLUSTER: torch.tensor(numbers)})
        alone, together = (counts_of(Constraint(at_most=0.05), rows) for rows in sums)
        false += [counts.p_values()[0] <= 0.04 for counts in (together, alone)]
        assert together.totals == (answers.sum(), len(answers)) and together.most == sizes.max()
    assert false[0] <= 0.04 * 300 and false[1] > 0.15 * 300


def test_samples_of_one_prompt_each_are_tested_exactly() -> None:
    rows = rows_of(torch.arange(30) < 2, **{CLUSTER: torch.arange(30)})
    counts = counts_of(Constraint(at_most=0.3), rows, longest=None)
    assert counts.single and counts.totals == (2, 30)


def test_a_look_at_too_few_clusters_is_refused() -> None:
    """80 prompts certify 0.05 with an error of 0.04, but not as 16 clusters of five."""
    objective = Objective("goal", {"c": Constraint(at_most=0.05)})
    alone = cluster_sizes(80, [*range(80)])
    check_prompts(planned_tests(objective, {}, None, alone), len(alone), 0.96, 80)
    fives = cluster_sizes(80, [number // 5 for number in range(80)])
    planned = planned_tests(objective, {}, None, fives)
    with pytest.raises(ConfigError, match=r"Expected at least 6\d clusters of prompts.*but got 16, try prompts of"):
        check_prompts(planned, len(fives), 0.96, 80, clustered=True)


def test_a_repeat_links_its_clusters() -> None:
    """Prompt 7 is of drives 1 and 2, so the prompts of both drives are one sample."""
    identity, cluster = torch.tensor([7.0, 7, 8, 9, 5]), torch.tensor([1.0, 2, 1, 2, 3])
    rows = {IDENTITY: identity, CLUSTER: cluster, "answers": torch.ones(5)}
    kept, words = _without_repeats(rows, Certification(range(5), "mine"), assumed=False)
    of_5, of_7, of_8, of_9 = kept[CLUSTER].tolist()
    assert of_7 == of_8 == of_9 != of_5 and words == "mine, without 1 that read as others do"
    assert CLUSTER not in _without_repeats(rows, Certification(range(5), "mine"), assumed=True)[0]


@pytest.mark.parametrize(
    ("clusters", "words"),
    [
        (None, "(their clusters are not known)"),
        ([1, 2, 3], "(each is a cluster of its own)"),
        ([1, 1, 2], "the 2 clusters of prompts are independent"),
    ],
)
def test_a_certificate_tells_what_it_knows_of_clusters(clusters: list[int] | None, words: str) -> None:
    """In one of its assumptions, and nowhere else."""
    rows = rows_of(torch.zeros(3), **({} if clusters is None else {CLUSTER: torch.tensor(clusters)}))
    found = certificate_of(Sample(rows, "mine", 80, {"c": True}), RARE, ASKED)
    assert words in found["assumptions"][0] and found["samples"] == len(set(clusters or range(3)))
    assert ("of a cluster that trained count as new" in found["assumptions"][0]) == (clusters is not None)
    assert clusters != [1, 1, 2] or "have at most 2 prompts, as the largest here" in found["assumptions"][0]
    assert sum("independent" in str(value) for value in found.values()) == 1


@pytest.mark.parametrize(("opportunities", "whole"), [(81.0, False), (2.0, True), (0.5, True)])
def test_more_opportunities_than_declared_give_no_verdict(opportunities: float, whole: bool) -> None:
    sample = Sample(rows_of(torch.zeros(3), torch.full((3,), opportunities)), "mine", 80, {"c": whole})
    with pytest.raises(UserError, match=f"opportunities per answer for 'c'.*got {opportunities:g}.*spent"):
        certificate_of(sample, RARE, ASKED)


def test_a_sample_of_few_prompts_counts_as_a_share_of_the_largest() -> None:
    """The test of clusters bets on an answer's opportunities out of those that the largest cluster can have."""
    assert planned_tests(RARE, {}, 80, np.array([1.0, 2.0, 3.0]))["c"].share == pytest.approx(2 / 3)
    assert planned_tests(RARE, {}, 80, np.ones(3))["c"].share is None
