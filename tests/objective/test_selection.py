"""Which of several validated policies is the best."""

import math
import random

import pytest

from lightning_cgrpo import Constraint, Objective
from lightning_cgrpo.objective.measurement import Evaluation
from lightning_cgrpo.objective.selection import CLEAR, Selection, Standing
from lightning_cgrpo.objective.verdicts.clustered import ClusteredRate

OBJECTIVE = Objective("goal", {"lava": Constraint(at_most=0.01), "polite": Constraint(at_least=0.95)})


def resumed(selection: Selection) -> Selection:
    """As a run that resumes from a checkpoint has it."""
    copy = Selection()
    copy.load_state_dict(selection.state_dict())
    return copy


def chosen(*policies: Standing) -> int:
    """The number of the best of the policies, each validated in a resumed run."""
    selection = Selection()
    best = -1
    for number, policy in enumerate(policies):
        selection = resumed(selection)
        if selection.chooses(policy):
            best = number
    return best


def by_definition(policies: list[Standing]) -> int:
    """The number of the best policy, with all of them in view."""
    candidates = [number for number, policy in enumerate(policies) if not policy.missed]
    met = [policies[number] for number in candidates if policies[number].met]
    if not candidates:
        return len(policies) - 1
    if met:
        highest = max(met, key=lambda policy: policy.reward)
        near = []
        for number in candidates:
            policy = policies[number]
            if policy.reward >= highest.reward - CLEAR * math.hypot(policy.error, highest.error):
                near.append(number)
        candidates = near
    return candidates[-1]


@pytest.mark.parametrize("violating", [0.0, 0.5, 0.9, 1.0])
def test_one_after_the_other_as_by_the_definition(violating: float) -> None:
    draw = random.Random(0)
    for _ in range(200):
        policies = []
        for number in range(12):
            missed = draw.random() < violating
            met = not missed and draw.random() < 0.5
            policies.append(Standing(missed, met, draw.gauss(number / 3, 2), draw.random()))
            assert chosen(*policies) == by_definition(policies)


def evaluation(reward: float, lava: float, prompts: int = 1000) -> Evaluation:
    error = (lava * (1 - lava) / prompts) ** 0.5 or None
    rates = {"lava": ClusteredRate(lava, error, prompts, prompts), "polite": ClusteredRate(0.0, None, prompts, prompts)}
    return Evaluation({"reward/mean": reward}, {"reward/mean": 0.1}, prompts, prompts, rates)


def test_the_standing_of_a_policy() -> None:
    assert Standing.of(OBJECTIVE, evaluation(3.0, lava=0.01)) == Standing(False, True, 3.0, 0.1)
    assert Standing.of(OBJECTIVE, evaluation(3.0, lava=0.011)) == Standing(False, False, 3.0, 0.1), "undecided"
    assert Standing.of(OBJECTIVE, evaluation(3.0, lava=0.03)) == Standing(True, False, 3.0, 0.1)
    assert Standing.of(OBJECTIVE, Evaluation()) is None
    unseen = Evaluation({"reward/mean": 3.0}, {}, 9, 9, {})
    assert Standing.of(OBJECTIVE, unseen) == Standing(False, False, 3.0, 0.0)


def test_a_policy_that_misses_a_threshold_is_the_best_only_among_such() -> None:
    missing = Standing(True, False, 9.0, 0.1)
    undecided = Standing(False, False, 1.0, 0.1)
    assert chosen(missing, missing) == 1
    assert chosen(missing, undecided, missing) == 1


def test_a_reward_that_collapses_ends_no_longer_as_the_best() -> None:
    assert (
        chosen(Standing(False, True, 5.0, 0.1), Standing(False, True, 4.9, 0.1), Standing(False, True, 1.0, 0.1)) == 1
    )


def test_large_rewards_keep_the_digits_of_a_double() -> None:
    policies = [Standing(False, True, reward, 0.0) for reward in (1e15, 1e15 + 1, 1e15)]
    assert chosen(*policies) == 1


def test_the_error_of_one_prompt_is_unknown() -> None:
    rising = [Standing.of(Objective("goal"), Evaluation({"reward/mean": reward}, {}, 1, 1)) for reward in (1.0, 0.0)]
    assert chosen(*[policy for policy in rising if policy is not None]) == 1
    agreeing = [Standing.of(Objective("goal"), Evaluation({"reward/mean": reward}, {}, 2, 2)) for reward in (1.0, 0.0)]
    assert chosen(*[policy for policy in agreeing if policy is not None]) == 0
