"""The vectorized gridworld against one episode played in plain Python, and against steps worked out by hand."""

from fractions import Fraction

import pytest
import torch

from lightning_cgrpo.tasks.gridworld import Gridworld, Layouts

UP, DOWN, LEFT, RIGHT, STAY = range(5)


class Episode:
    """The dynamics as the paper tells them, on a set of lava cells (x, y) and with exact fractions of a charge."""

    def __init__(self, start, goal, lava, size):
        self.x, self.y = start
        self.goal, self.lava, self.size = goal, lava, size
        self.charge = Fraction(1)

    def observe(self):
        last = self.size - 1
        position = [place / last for place in (self.x, self.y, *self.goal)]
        window = [float((self.x + dx, self.y + dy) in self.lava) for dy in range(-2, 3) for dx in range(-2, 3)]
        return [*position, float(self.charge), *window]

    def step(self, action):
        if action == STAY:
            self.charge = min(self.charge + Fraction(20, 100), Fraction(1))
        else:
            dx, dy = {UP: (0, -1), DOWN: (0, 1), LEFT: (-1, 0), RIGHT: (1, 0)}[action]
            if 0 <= self.x + dx < self.size and 0 <= self.y + dy < self.size:
                self.x, self.y = self.x + dx, self.y + dy
            self.charge = max(self.charge - Fraction(5, 100), Fraction(0))
        here = (self.x, self.y)
        return {"goal": here == self.goal, "lava": here in self.lava, "battery": self.charge < Fraction(10, 100)}


@pytest.mark.parametrize(("size", "lava"), [(10, 20), (4, 5), (2, 0)])
def test_equals_single_episodes_in_plain_python(size, lava):
    """Observations and everything that happens, exactly, over random episodes of which some end and are dropped."""
    prompts = Layouts(1000, size=size, lava=lava).groups(torch.arange(20))
    episodes = Gridworld().reset(prompts, 3)
    columns = prompts.columns
    oracles = []
    for start, goal, tiles in zip(columns["start"].tolist(), columns["goal"].tolist(), columns["lava"], strict=True):
        burning = {(cell % size, cell // size) for cell in tiles.nonzero().flatten().tolist()}
        places = (start % size, start // size), (goal % size, goal // size)
        oracles += [Episode(*places, burning, size) for _ in range(3)]
    draw = torch.Generator().manual_seed(0)
    seen = dict.fromkeys(("goal", "lava", "battery"), 0)
    states = episodes.start
    for _ in range(80):
        assert torch.equal(episodes.observe(states), torch.tensor([oracle.observe() for oracle in oracles]))
        # More moves than recharging, so that batteries run empty.
        actions = torch.randint(0, 9, (len(oracles),), generator=draw) % 5
        before, states = states, episodes.step(states, actions)
        ended, happened = episodes.ended(states), episodes.report(before, actions, states)
        expected = [oracle.step(action) for oracle, action in zip(oracles, actions.tolist(), strict=True)]
        for name in seen:
            assert happened[name].tolist() == [step[name] for step in expected]
            seen[name] += int(happened[name].sum())
        assert ended.tolist() == [step["goal"] for step in expected]
        going_on = (~ended).nonzero().squeeze(-1)
        states = states[going_on]
        oracles = [oracles[row] for row in going_on.tolist()]
        if not oracles:
            break
    assert all(count > 0 for name, count in seen.items() if lava or name == "goal"), "the test must see every event"


def test_nothing_leads_away_from_the_goal():
    """The sampler drops episodes that have ended only now and then; until then they stay as they are."""
    episodes = Gridworld().reset(Layouts(100, size=4, lava=3).groups(torch.arange(6)), 2)
    states = torch.arange(6 * 16 * 21)
    ended = states[episodes.ended(states)]
    assert len(ended) == 6 * 21
    for action in range(5):
        assert torch.equal(episodes.step(ended, torch.full_like(ended, action)), ended)


def test_observations_have_the_default_precision():
    """Under Lightning's precision 64-true, a third is a third in float64."""
    prompts = Layouts(20, size=4, lava=3).groups(torch.arange(20))

    def observations():
        episodes = Gridworld().reset(prompts, 1)
        return episodes.observe(episodes.start)

    assert observations().dtype == torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert 1 / 3 in observations().flatten().tolist()
    finally:
        torch.set_default_dtype(torch.float32)
