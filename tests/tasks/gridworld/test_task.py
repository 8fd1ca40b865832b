"""Signals of the gridworld, worked out by hand for three episodes of 4, 2 and 3 steps."""

import pytest
import torch

from lightning_cgrpo.core.rollout import PromptGroups, Rollouts
from lightning_cgrpo.tasks.gridworld import GridworldTask

PROMPTS = PromptGroups(torch.tensor([0]))


@pytest.fixture
def rollouts():
    mask = torch.tensor([[[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0]]]).bool()
    info = {
        "goal": torch.tensor([[[0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]]]).bool(),
        "lava": torch.tensor([[[1, 1, 0, 1], [0, 1, 0, 0], [0, 0, 0, 0]]]).bool(),
        "battery": torch.tensor([[[0, 0, 0, 1], [0, 0, 0, 0], [1, 0, 0, 0]]]).bool(),
    }
    return Rollouts(mask.long(), mask, {}, info=info)


LAVA = {"sum": [3, 1, 0], "mean": [3 / 4, 1 / 2, 0], "indicator": [1, 1, 0]}
BATTERY = {"sum": [1, 0, 1], "mean": [1 / 4, 0, 1 / 3], "indicator": [1, 0, 1]}


@pytest.mark.parametrize("cost", ["sum", "mean", "indicator"])
@pytest.mark.parametrize("rate", ["steps", "episodes"])
def test_cost_and_rate_are_chosen_independently(rollouts, cost, rate):
    """`cost` decides the value for the advantage, `rate` the counts, each whatever the other."""
    signals = GridworldTask(cost, rate).score(PROMPTS, rollouts)
    assert list(signals) == list(GridworldTask.signals)
    for name, values, per_step, per_episode in (
        ("lava", LAVA, [3, 1, 0], [1, 1, 0]),
        ("battery", BATTERY, [1, 0, 1], [1, 0, 1]),
    ):
        torch.testing.assert_close(signals[name].value, torch.tensor([values[cost]], dtype=torch.float32))
        count, opportunities = signals[name].counts()
        assert count.tolist() == [per_step if rate == "steps" else per_episode]
        assert opportunities.tolist() == [[4, 2, 3] if rate == "steps" else [1, 1, 1]]
    assert signals["goal"].value.tolist() == [[0, 1, 1]]
    assert [c.tolist() for c in signals["goal"].counts()] == [[[0, 1, 1]], [[1, 1, 1]]]
