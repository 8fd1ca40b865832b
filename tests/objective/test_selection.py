"""Which of several validated policies is the best."""

import math
import random

import pytest

from lightning_cgrpo import Constraint, Look, Objective
from lightning_cgrpo.objective.evaluation import Evaluation
from lightning_cgrpo.objective.selection import CLEAR, Selection, Standing, too_few_to_rank
from lightning_cgrpo.objective.verdicts.clustered import ClusteredRate

OBJECTIVE = Objective("goal", {"lava": Constraint(at_most=0.01), "polite": Constraint(at_least=0.95)})
BOUNDS = {name: constraint.bound for name, constraint in OBJECTIVE.constraints.items()}


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
    last = len(policies) - 1
    if not policies[last].ranked:
        return last
    met = [policy for policy in policies if policy.met]
    candidates = []
    for number, policy in enumerate(policies):
        recent = last - number < (last + 1) / 3
        if not (policy.met and recent):
            continue
        highest = max(met, key=lambda other: other.reward)
        if policy.reward >= highest.reward - CLEAR * math.hypot(policy.error, highest.error):
            candidates.append(number)
    return candidates[-1] if candidates else last


@pytest.mark.parametrize("violating", [0.0, 0.5, 0.9, 1.0])
def test_one_after_the_other_as_by_the_definition(violating: float) -> None:
    draw = random.Random(0)
    for _ in range(200):
        policies = []
        for number in range(12):
            excess = 1.0 if draw.random() < violating else -1.0
            policies.append(Standing(excess, draw.gauss(number / 3, 2), draw.random()))
            assert chosen(*policies) == by_definition(policies)


def evaluation(reward: float, lava: float, prompts: int = 1000) -> Evaluation:
    error = (lava * (1 - lava) / prompts) ** 0.5 or None
    rates = {"lava": ClusteredRate(lava, error, prompts, prompts), "polite": ClusteredRate(0.0, None, prompts, prompts)}
    return Evaluation({"reward/mean": reward}, {"reward/mean": 0.1}, prompts, prompts, rates)


def test_the_standing_of_a_policy() -> None:
    at, above = (Standing.of(OBJECTIVE, evaluation(3.0, lava)) for lava in (0.01, 0.02))
    assert at == Standing(0.0, 3.0, 0.1) and at.met
    assert above is not None and not above.met
    assert above.excess == pytest.approx(0.01 / (0.01 * 0.99) ** 0.5), "in deviations of one answer"
    assert Standing.of(OBJECTIVE, Evaluation()) is None
    unseen = Standing.of(OBJECTIVE, Evaluation({"reward/mean": 3.0}, {}, 900, 900, {}))
    assert unseen == Standing(math.inf, 3.0, 0.0) and not unseen.met


def test_few_prompts_do_not_rank() -> None:
    """A rate of 0.01 needs 100 prompts for one expected violation, one of 0.05 needs 20; the last is then the best."""
    assert [too_few_to_rank(BOUNDS, prompts) for prompts in (100, 99, 20, 19)] == [[], ["lava"], ["lava"], [*BOUNDS]]
    policies = [Standing.of(OBJECTIVE, evaluation(3.0, lava, prompts=50)) for lava in (0.0, 0.5)]
    assert chosen(*[policy for policy in policies if policy is not None]) == 1
    means = Objective("goal", {"cost": Constraint(mean_at_most=3.0)})
    assert too_few_to_rank({"cost": means.constraints["cost"].bound}, 1) == []


MET, MISSED = Standing(-1.0, 1.0, 0.1), Standing(1.0, 9.0, 0.1)


def test_a_policy_that_meets_the_thresholds_stays_the_best_for_a_third_of_the_validations() -> None:
    before = 5 * [MISSED]
    assert chosen(*before, MET, MISSED) == 5
    assert chosen(*before, MET, MISSED, MISSED) == 5
    assert chosen(*before, MET, MISSED, MISSED, MISSED) == 8, "three of nine validations ago"
    assert chosen(*before) == 4


def test_a_reward_that_collapses_ends_no_longer_as_the_best() -> None:
    rewards = (5.0, 5.0, 5.0, 4.9, 1.0)
    assert chosen(*[Standing(-1.0, reward, 0.1) for reward in rewards]) == 3


def test_large_rewards_keep_the_digits_of_a_double() -> None:
    policies = [Standing(-1.0, reward, 0.0) for reward in (1e15, 1e15, 1e15 + 1, 1e15)]
    assert chosen(*policies) == 2


def test_a_large_reward_that_rises_makes_the_last_the_best() -> None:
    """As in a run whose reward is around a million: 1 + reward has no digits left in single precision."""
    assert chosen(*[Standing(-1.0, 1e6 + number, 1e-3) for number in range(5)]) == 4


def test_the_error_of_one_prompt_is_unknown() -> None:
    def falling(prompts: int) -> list[Standing | None]:
        rewards = (1.0, 1.0, 1.0, 0.0)
        return [Standing.of(Objective("goal"), Evaluation({"reward/mean": r}, {}, prompts, prompts)) for r in rewards]

    assert chosen(*[policy for policy in falling(1) if policy is not None]) == 3
    assert chosen(*[policy for policy in falling(2) if policy is not None]) == 2


def likely(chance: float, reward: float = 1.0) -> Standing:
    return Standing(-1.0, reward, 0.1, chance=chance, enough=0.9)


def test_with_a_look_the_chance_of_a_certificate_decides() -> None:
    """Policies 0, 1, ... by their chance; the last third of six validations has two policies."""
    assert chosen(likely(0.95), likely(0.5)) == 1, "too old"
    assert chosen(*[likely(0.1)] * 4, likely(0.95), likely(0.5)) == 4, "the latest with the declared chance"
    assert chosen(*[likely(0.1)] * 4, likely(0.95), likely(0.92)) == 5
    assert chosen(*[likely(0.1)] * 4, likely(0.95, reward=2.0), likely(0.92)) == 4, "a clearly higher reward"
    assert chosen(*[likely(0.1)] * 4, likely(0.6), likely(0.5)) == 4, "else the highest chance"
    assert chosen(*[likely(0.1)] * 4, likely(0.5), likely(0.6)) == 5


def test_the_chance_is_of_the_posterior_so_a_short_validation_does_not_qualify() -> None:
    objective = Objective("goal", {"lava": Constraint(at_most=0.15)}, Look(1_000))

    def standing(prompts: int) -> Standing:
        rate = ClusteredRate(0.1, (0.09 / prompts) ** 0.5, prompts, prompts, most=1.0)
        return Standing.of(objective, Evaluation({"reward/mean": 1.0}, {}, prompts, prompts, {"lava": rate}))

    assert standing(2_000).qualified and standing(60).met and not standing(60).qualified
