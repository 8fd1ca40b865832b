"""Signals of episodes and steps, counted by hand."""

import pytest
import torch

from lightning_cgrpo import GymnasiumTask, Objective
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.rollout import PromptGroups, Rollouts
from lightning_cgrpo.objective.constraint import Constraint
from lightning_cgrpo.tasks.gymnasium.signals import ended_in_lava, fast_steps, reached_the_goal, torque_is_hard

MASK = torch.tensor([[[1, 1, 1], [1, 1, 0]]], dtype=torch.bool)
ROLLOUTS = Rollouts(
    actions=torch.zeros(1, 2, 3, 1),
    mask=MASK,
    inputs={},
    info={
        "reward": torch.tensor([[[1.0, 2.0, 3.0], [0.5, 0.0, 0.0]]]),
        "terminated": torch.tensor([[[False, False, False], [False, True, False]]]),
        "truncated": torch.tensor([[[False, False, True], [False, False, False]]]),
        "observation": torch.tensor([[[[0.0, 9.0], [-0.6, 0.0], [0.7, 0.0]], [[0.5, 0.0], [0.51, 0.0], [8.0, 0.0]]]]),
        "info.cost": torch.tensor([[[1.0, 0.0, 2.0], [0.0, 4.0, 0.0]]]),
    },
)
PROMPTS = PromptGroups(torch.tensor([0]))


def score(signals=None):
    found = GymnasiumTask(signals).score(PROMPTS, ROLLOUTS)
    return {name: signal.within(MASK) for name, signal in found.items()}


def test_built_in_signals():
    found = {name: signal.total.tolist() for name, signal in score().items()}
    assert found == {
        "reward": [[6, 0.5]],
        "return": [[6, 0.5]],
        "length": [[3, 2]],
        "terminated": [[0, 1]],
        "truncated": [[1, 0]],
    }


def test_declared_signals():
    far, cost = "lightning_cgrpo.tasks.gymnasium.signals.cart_is_far", {"sum": "info.cost"}
    found = score({"far": far, "cost": cost, "dear": lambda info_cost, mask: fast_steps(info_cost - 0.8, mask)})
    assert {name: found[name].total.tolist() for name in ("far", "cost", "dear")} == {
        "far": [[2, 1]],  # 0.5 is near, and the step after the end does not count
        "cost": [[3, 4]],
        "dear": [[1, 1]],
    }
    for name in ("cost", "dear"):
        assert found[name].counts()[1].tolist() == [[1, 1]] and found[name].of_whole_answers, "a number of an episode"
        assert found[name].value.dim() == 3, "by step, for a critic"
    objective = Objective("return", {"far": Constraint(at_most=0.05)})
    violations, opportunities = objective.violations(found)
    assert violations.tolist() == [3] and opportunities.tolist() == [5]


def test_the_signals_of_the_shipped_worlds():
    reward = torch.tensor([[[0.0, 0.0, 0.9], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]])
    terminated = torch.tensor([[[False, False, True], [False, True, False], [False, False, False]]])
    assert reached_the_goal(reward).tolist() == [[True, False, False]]
    assert ended_in_lava(reward, terminated).tolist() == [[False, True, False]]
    assert torque_is_hard(torch.tensor([[[[1.0], [-1.5], [0.2]]]])).tolist() == [[[False, True, False]]]


def test_a_sum_is_a_number_of_an_episode():
    """Its mean is over episodes, and so is the rate of episodes beyond a limit."""
    found = score({"cost": {"sum": "info.cost"}})
    mean = Constraint(signal="cost", mean_at_most=3.0)
    rate = Constraint(signal="cost", violated_above=3.5, at_most=0.1)
    objective = Objective("return", {"mean": mean, "rate": rate})
    violations, opportunities = objective.violations(found)
    assert violations.tolist() == [3 + 4, 1] and opportunities.tolist() == [2, 2]
    assert found["cost"].value.dim() == 3  # by step, for a critic


def test_the_limit_of_a_sum_is_that_of_the_prompts_column():
    found = score({"cost": {"sum": "info.cost"}})
    rate = Constraint(signal="cost", violated_above={"column": "budget"}, at_most=0.1)
    objective = Objective("return", {"rate": rate})
    for budget, violations in ((2.5, 2), (3.5, 1), (4.5, 0)):
        made = objective.made(found, PromptGroups(torch.tensor([0]), {"budget": [budget]}))
        assert objective.violations(made)[0].tolist() == [violations]


def ends_badly(terminated, reward, info_cost):
    return (terminated & (reward == 0) & (info_cost == 4)).any(-1)


def test_functions_get_the_facts_that_they_name():
    assert score({"bad": ends_badly})["bad"].value.tolist() == [[0, 1]]
    with pytest.raises(UserError, match=r"signal 'short' to return a tensor \(1, 2, 3\) of steps or \(1, 2\)"):
        score({"short": lambda reward: reward[0]})


@pytest.mark.parametrize(
    ("signals", "message"),
    [
        ({"x": {"above": {"reward": 1}}}, r"to be \{sum: FACT\}, .*try a function for steps above a limit"),
        ({"x": {"sum": "reward", "above": 1}}, "Expected signal 'x' to be"),
        ({"x": {"sum": "info.price"}}, "to name a fact of steps, .*info.cost, but got 'info.price'"),
        ({"x": {"sum": "observation.2"}}, "observation.0 to observation.1"),
    ],
)
def test_mistakes(signals, message):
    with pytest.raises(UserError, match=message):
        score(signals)
