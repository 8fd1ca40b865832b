"""Which of several validated policies is the best, and how many prompts tell."""

import math
import random

import pytest
import torch

from lightning_cgrpo import Constraint, Look, Objective
from lightning_cgrpo.objective.evaluation import Evaluation
from lightning_cgrpo.objective.selection import CLEAR, Selection, Standing, too_few, too_few_to_rank
from lightning_cgrpo.objective.verdicts.clustered import ClusteredMean, ClusteredRate

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


def evaluation(reward: float, lava: float = 0.0, impolite: float = 0.0, prompts: int = 1000) -> Evaluation:
    rates = {
        name: ClusteredRate(rate, (rate * (1 - rate) / prompts) ** 0.5 or None, prompts, prompts)
        for name, rate in (("lava", lava), ("polite", impolite))
    }
    return Evaluation({"reward/mean": reward}, {"reward/mean": 0.1}, prompts, prompts, rates)


def merit(reward: float, **rates: float) -> float:
    return Standing.of(OBJECTIVE, evaluation(reward, **rates)).merit


def test_merit_puts_feasible_policies_first_and_then_the_reward_decides() -> None:
    order = [
        merit(9.0, lava=0.5, impolite=0.5),
        merit(9.0, lava=0.02),
        merit(9.0, lava=0.011),
        merit(-1e3, lava=0.01),
        merit(-9.0, lava=0.004),
        merit(0.0),
        merit(0.2, impolite=0.05),
        merit(0.9),
        merit(0.901),
        merit(1e3),
    ]
    assert order == sorted(order) and len(set(order)) == len(order)
    assert order[2] < 0 <= order[3]
    for reward in (1e6, -1e6):  # in the type of logged metrics, too
        merits = torch.tensor([merit(reward + more) for more in range(3)], dtype=torch.float32).tolist()
        assert 0 < merits[0] < merits[1] < merits[2]


def test_the_worst_constraint_counts_in_standard_units() -> None:
    """2 % of lava at 1 % is worse than 8 % of impoliteness at 5 %, in standard deviations of one answer."""
    assert merit(1.0, lava=0.03) < merit(1.0, impolite=0.08) < 0
    assert merit(1.0, lava=0.03, impolite=0.06) == merit(1.0, lava=0.03)
    for bound, mean, expected in ((100.0, 101.0, -0.01), (-100.0, -99.0, -0.01), (0.0, 0.5, -0.5)):
        objective = Objective("goal", {"tokens": Constraint(mean_at_most=bound)})
        measured = Evaluation({"reward/mean": 1.0}, {}, 10, 10, {"tokens": ClusteredMean(mean, 1.0, 10, 10)})
        assert Standing.of(objective, measured).merit == pytest.approx(expected), "a mean, in shares of its bound"


def test_the_standing_of_a_policy() -> None:
    at, above = (Standing.of(OBJECTIVE, evaluation(3.0, lava)) for lava in (0.01, 0.02))
    assert at == Standing(0.0, 3.0, 0.1) and at.met
    assert above is not None and not above.met
    assert above.excess == pytest.approx(0.01 / (0.01 * 0.99) ** 0.5), "in deviations of one answer"
    assert Standing.of(OBJECTIVE, Evaluation()) is None
    unseen = Standing.of(OBJECTIVE, Evaluation({"reward/mean": 3.0}, {}, 900, 900, {}))
    assert unseen == Standing(math.inf, 3.0, 0.0) and not unseen.met and unseen.merit < merit(1.0, lava=1.0) < 0
    assert Standing.of(Objective("goal"), Evaluation({"reward/mean": 1.0})).merit == pytest.approx(2)


def test_few_prompts_do_not_rank() -> None:
    """A rate of 0.01 needs 100 prompts for one expected violation, one of 0.05 needs 20; the last is then the best."""
    assert [too_few_to_rank(BOUNDS, prompts) for prompts in (100, 99, 20, 19)] == [[], ["lava"], ["lava"], [*BOUNDS]]
    policies = [Standing.of(OBJECTIVE, evaluation(3.0, lava, prompts=50)) for lava in (0.0, 0.5)]
    assert chosen(*[policy for policy in policies if policy is not None]) == 1
    means = Objective("goal", {"cost": Constraint(mean_at_most=3.0)})
    assert too_few_to_rank({"cost": means.constraints["cost"].bound}, 1) == []


def test_how_many_validation_prompts_can_say_something() -> None:
    three = Objective("length", {name: Constraint(at_least=0.99) for name in ("format", "integer", "safe")})
    note = too_few(three, 250)
    assert note.startswith("250 validation prompts are too few to show format >= 0.99 (299 needed), integer")
    assert [("can't rank" in too_few(three, prompts)) for prompts in (99, 100)] == [True, False]
    assert too_few(three, 299) is None and too_few(OBJECTIVE, 299) is None
    assert "polite" not in too_few(OBJECTIVE, 59) and "polite >= 0.95 (59 needed)" in too_few(OBJECTIVE, 58)
    assert "lava <= 0 (no number suffices)" in too_few(Objective("goal", {"lava": Constraint(at_most=0.0)}), 10**6)


MET, MISSED = Standing(-1.0, 1.0, 0.1), Standing(1.0, 9.0, 0.1)


def test_a_policy_that_meets_the_thresholds_stays_the_best_for_a_third_of_the_validations() -> None:
    before = 5 * [MISSED]
    assert chosen(*before, MET, MISSED) == 5
    assert chosen(*before, MET, MISSED, MISSED) == 5
    assert chosen(*before, MET, MISSED, MISSED, MISSED) == 8, "three of nine validations ago"
    assert chosen(*before) == 4


@pytest.mark.parametrize(
    ("rewards", "error", "best"),
    [
        ((5.0, 5.0, 5.0, 4.9, 1.0), 0.1, 3),  # one that collapses ends no longer as the best
        ((1e15, 1e15, 1e15 + 1, 1e15), 0.0, 2),  # large rewards keep the digits of a double
        ((1e6, 1e6 + 1, 1e6 + 2, 1e6 + 3), 1e-3, 3),  # 1 + reward has no digits left in single precision
    ],
)
def test_of_those_that_meet_the_thresholds_the_reward_decides(rewards, error: float, best: int) -> None:
    assert chosen(*[Standing(-1.0, reward, error) for reward in rewards]) == best


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
