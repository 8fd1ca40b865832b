"""The order of policies."""

import pytest
import torch

from lightning_cgrpo import Constraint, Objective
from lightning_cgrpo.objective.evaluation import Evaluation
from lightning_cgrpo.objective.selection import Standing, too_few
from lightning_cgrpo.objective.verdicts.clustered import ClusteredMean, ClusteredRate


def merit(objective, evaluation):
    standing = Standing.of(objective, evaluation)
    return None if standing is None else standing.merit


OBJECTIVE = Objective("goal", {"lava": Constraint(at_most=0.01), "polite": Constraint(at_least=0.95)})


def of(reward, lava=0.0, impolite=0.0, prompts=400):
    rates = {
        name: ClusteredRate(rate, (rate * (1 - rate) / prompts) ** 0.5 or None, prompts, prompts)
        for name, rate in (("lava", lava), ("polite", impolite))
    }
    return merit(OBJECTIVE, Evaluation({"reward/mean": reward}, {}, prompts, prompts, rates))


def test_feasible_policies_come_first_and_then_the_reward_decides():
    order = [
        of(9.0, lava=0.5, impolite=0.5),
        of(9.0, lava=0.02),
        of(9.0, lava=0.011),
        of(-1e3, lava=0.01),
        of(-9.0, lava=0.004),
        of(0.0),
        of(0.2, impolite=0.05),
        of(0.9),
        of(0.901),
        of(1e3),
    ]
    assert order == sorted(order) and len(set(order)) == len(order)
    assert order[2] < 0 <= order[3]


@pytest.mark.parametrize("reward", [1e6, -1e6])
def test_large_rewards_keep_their_order_in_the_type_of_logged_metrics(reward):
    merits = torch.tensor([of(reward), of(reward + 1), of(reward + 2)], dtype=torch.float32).tolist()
    assert 0 < merits[0] < merits[1] < merits[2]


def test_the_worst_constraint_counts_in_standard_units():
    """2 % of lava at 1 % is worse than 8 % of impoliteness at 5 %, in standard deviations of one answer."""
    assert of(1.0, lava=0.03) < of(1.0, impolite=0.08) < 0
    assert of(1.0, lava=0.03, impolite=0.06) == of(1.0, lava=0.03)


@pytest.mark.parametrize(
    ("bound", "mean", "expected"), [(100.0, 101.0, -0.01), (-100.0, -99.0, -0.01), (0.0, 0.5, -0.5)]
)
def test_a_mean_counts_in_shares_of_its_bound(bound, mean, expected):
    objective = Objective("goal", {"tokens": Constraint(mean_at_most=bound)})
    rates = {"tokens": ClusteredMean(mean, 1.0, 10, 10)}
    assert merit(objective, Evaluation({"reward/mean": 1.0}, {}, 10, 10, rates)) == pytest.approx(expected)


def test_what_was_never_observed():
    unseen = Evaluation({"reward/mean": 1.0}, {}, 400, 400, {"lava": ClusteredRate(0.0, None, 400, 400)})
    assert merit(OBJECTIVE, unseen) < of(1.0, lava=1.0) < 0
    assert merit(OBJECTIVE, Evaluation()) is None
    assert merit(Objective("goal"), Evaluation({"reward/mean": 1.0})) == pytest.approx(2)


def test_how_many_validation_prompts_can_say_something():
    three = Objective("length", {name: Constraint(at_least=0.99) for name in ("format", "integer", "safe")})
    note = too_few(three, 250)
    assert note.startswith("250 validation prompts are too few to show format >= 0.99 (299 needed), integer")
    assert [("can't rank" in too_few(three, prompts)) for prompts in (99, 100)] == [True, False]
    assert too_few(three, 299) is None and too_few(OBJECTIVE, 299) is None
    assert "polite" not in too_few(OBJECTIVE, 59) and "polite >= 0.95 (59 needed)" in too_few(OBJECTIVE, 58)
    assert "lava <= 0 (no number suffices)" in too_few(Objective("goal", {"lava": Constraint(at_most=0.0)}), 10**6)
