"""The vectorized gridworld against one episode played in plain Python, and against steps worked out by hand."""

from fractions import Fraction

import pytest
import torch

from lightning_cgrpo.rollout import PromptGroups
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
        position = [self.x / last, self.y / last, self.goal[0] / last, self.goal[1] / last]
        window = [
            float((self.x + dx, self.y + dy) in self.lava) for dy in (-2, -1, 0, 1, 2) for dx in (-2, -1, 0, 1, 2)
        ]
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


def layout(start, goal, lava=(), size=5):
    """A batch of one prompt, from cells (x, y)."""
    tiles = torch.zeros(1, size * size, dtype=torch.bool)
    for x, y in lava:
        tiles[0, y * size + x] = True

    def cell(place):
        return torch.tensor([place[1] * size + place[0]])

    return PromptGroups(torch.tensor([0]), {"start": cell(start), "goal": cell(goal), "lava": tiles})


def first_observations(prompts, group_size=1):
    episodes = Gridworld().reset(prompts, group_size)
    return episodes.observe(episodes.start)


def play(prompts, actions):
    """What each action of a single episode leads to: ended, what happened, and the observation after it."""
    episodes = Gridworld().reset(prompts, 1)
    state = episodes.start
    for action in actions:
        before, state = state, episodes.step(state, torch.tensor([action]))
        happened = episodes.report(before, torch.tensor([action]), state)
        assert torch.equal(episodes.ended(state), happened["goal"])
        yield {name: bool(value) for name, value in happened.items()}, episodes.observe(state)[0]


@pytest.mark.parametrize(("size", "lava"), [(10, 20), (4, 5), (2, 0)])
def test_equals_single_episodes_in_plain_python(size, lava):
    """Observations and everything that happens, exactly, over random episodes of which some end and are dropped."""
    prompts = Layouts(1000, size=size, lava=lava).groups(torch.arange(20))
    episodes = Gridworld().reset(prompts, 3)
    columns = prompts.columns
    oracles = [
        Episode(
            (start % size, start // size),
            (goal % size, goal // size),
            {(int(cell) % size, int(cell) // size) for cell in tiles.nonzero()},
            size,
        )
        for start, goal, tiles in zip(columns["start"].tolist(), columns["goal"].tolist(), columns["lava"], strict=True)
        for _ in range(3)
    ]
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


def test_charge_in_steps_of_five_percent():
    """10 % is not below 10 %: the 18th move is fine, the 19th violates; 0 % is the floor, and one stay brings 20 %."""
    prompts = layout((0, 0), goal=(4, 4))
    low = [happened["battery"] for happened, _ in play(prompts, [UP] * 25)]
    assert low == [False] * 18 + [True] * 7
    *_, (empty, at_zero) = play(prompts, [UP] * 25)
    assert empty["battery"] and at_zero[4] == 0
    *_, (charged, at_twenty) = play(prompts, [*[UP] * 25, STAY])
    assert not charged["battery"] and at_twenty[4].item() == pytest.approx(0.2)
    *_, (_, capped) = play(prompts, [UP, STAY])
    assert capped[4] == 1
    # The first stay from 5 % already counts as charged: what matters is the charge after the step.
    assert [happened["battery"] for happened, _ in play(prompts, [*[UP] * 19, STAY])][-2:] == [True, False]


def test_lava_costs_in_every_step_that_ends_on_it():
    prompts = layout((0, 0), goal=(4, 4), lava=[(1, 0)])
    steps = [happened["lava"] for happened, _ in play(prompts, [STAY, RIGHT, STAY, UP, RIGHT, LEFT, LEFT])]
    #                stay beside it, onto it, stay on it, against the wall on it, off it, onto it, off it
    assert steps == [False, True, True, True, False, True, False]


def test_nothing_leads_away_from_the_goal():
    """The sampler drops episodes that have ended only now and then; until then they stay as they are."""
    episodes = Gridworld().reset(Layouts(100, size=4, lava=3).groups(torch.arange(6)), 2)
    states = torch.arange(6 * 16 * 21)
    ended = states[episodes.ended(states)]
    assert len(ended) == 6 * 21
    for action in range(5):
        assert torch.equal(episodes.step(ended, torch.full_like(ended, action)), ended)


def test_the_group_of_a_prompt_is_in_consecutive_rows():
    prompts = Layouts(100).groups(torch.tensor([4, 9]))
    together = first_observations(prompts, 3)
    alone = [first_observations(Layouts(100).groups(torch.tensor([index]))) for index in (4, 9)]
    assert torch.equal(together, torch.cat([alone[0]] * 3 + [alone[1]] * 3))


def test_observations_have_the_default_precision():
    """Under Lightning's precision 64-true, a third is a third in float64."""
    prompts = layout((1, 0), goal=(3, 3), size=4)
    assert first_observations(prompts).dtype == torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert first_observations(prompts)[0, 0].item() == 1 / 3
    finally:
        torch.set_default_dtype(torch.float32)
