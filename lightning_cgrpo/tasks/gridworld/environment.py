"""The dynamics of the gridworld: move or recharge, mind the lava, reach the goal."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import unfold

from lightning_cgrpo.rollout import PromptGroups
from lightning_cgrpo.samplers.environment import Environment

ACTIONS = ("up", "down", "left", "right", "stay")
STAY = ACTIONS.index("stay")
OBSERVATION_SIZE = 30
FULL_CHARGE = 20
"""In units of 5 %."""
CHARGES = FULL_CHARGE + 1
LOW_CHARGE = 2
"""Charges below this violate."""


class Gridworld(Environment):
    """The paper's gridworld (appendix C), vectorized over episodes.

    Five actions: four moves (against a wall the agent stays put, and still drains) and stay, which recharges. An
    observation has 30 numbers: x, y, goal x, goal y in [0, 1], the battery's charge in [0, 1], and the 5x5 lava map
    around the agent (outside of the grid there is no lava). An episode ends only at the goal, or after `max_steps`.

    The battery is counted in units of 5 %, since floating point gets the 10 % threshold wrong.

    Reports per step: ``goal``, ``lava`` (the step ended on lava, standing still included), ``battery`` (the charge
    after the step is below 10 %).

    Args:
        max_steps: longest episode.
        recharge: charge gained by staying, in units of 5 %; nothing drains in that step. The paper's text also admits
            a net gain of 15 %, `recharge=3`.
    """

    observation_size = 30
    actions = 5

    def __init__(self, max_steps: int = 80, recharge: int = 4) -> None:
        self.max_steps, self.recharge = max_steps, recharge

    def reset(self, prompts: PromptGroups, group_size: int) -> GridworldEpisodes:
        start, goal, lava = (prompts.column(name, "Gridworld") for name in ("start", "goal", "lava"))
        return GridworldEpisodes(start, goal, lava, group_size, self.recharge)


class GridworldEpisodes:
    """Episodes as tables over all states: a state counts through layouts, their cells, and the charges in a cell.

    Looking things up costs one operation where computing them costs many, and an update has more operations than sums.
    """

    def __init__(self, start: Tensor, goal: Tensor, lava: Tensor, group_size: int, recharge: int) -> None:
        batch, cells = lava.shape
        layouts = torch.arange(batch, device=lava.device)
        self._lava = lava.flatten()
        self._goal = torch.zeros_like(lava).scatter_(1, goal[:, None], True).flatten()
        self._observations = _observations(lava, goal)
        # [B, cells * charges, actions]; nothing leads away from the goal.
        local = transitions(math.isqrt(cells), recharge).to(lava.device)
        reached = local + (layouts * len(local))[:, None, None]
        at_goal = (layouts * cells + goal)[:, None] * CHARGES + torch.arange(CHARGES, device=lava.device)
        reached.view(-1, len(ACTIONS))[at_goal] = at_goal[..., None]
        self._next = reached.flatten()
        self.start = ((layouts * cells + start) * CHARGES + FULL_CHARGE).repeat_interleave(group_size)

    def observe(self, states: Tensor) -> Tensor:
        return self._observations.index_select(0, states)

    def step(self, states: Tensor, actions: Tensor) -> Tensor:
        return self._next.take(actions.add(states, alpha=len(ACTIONS)))

    def ended(self, states: Tensor) -> Tensor:
        return self._goal.take(states // CHARGES)

    def report(self, states: Tensor, actions: Tensor, reached: Tensor) -> dict[str, Tensor]:
        cells = reached // CHARGES
        return {
            "goal": self._goal.take(cells),
            "lava": self._lava.take(cells),
            "battery": reached % CHARGES < LOW_CHARGE,
        }


@lru_cache(maxsize=16)
def transitions(size: int, recharge: int) -> Tensor:
    """The state reached from each state, ``cell * CHARGES + charge``, by each action, ``[states, actions]``."""
    change = torch.tensor([recharge if action == STAY else -1 for action in range(len(ACTIONS))])
    charge = (torch.arange(CHARGES)[:, None] + change).clamp_(0, FULL_CHARGE)
    return (moves(size)[:, None] * CHARGES + charge).flatten(0, 1)


def moves(size: int) -> Tensor:
    """The cell reached from each cell by each action, ``[cells, actions]``."""
    cell = torch.arange(size * size)
    y, x = cell // size, cell % size
    up, down = (y - 1).clamp(min=0) * size + x, (y + 1).clamp(max=size - 1) * size + x
    left, right = y * size + (x - 1).clamp(min=0), y * size + (x + 1).clamp(max=size - 1)
    return torch.stack([up, down, left, right, cell], dim=1)


def _observations(lava: Tensor, goal: Tensor) -> Tensor:
    """Observations of every state of every layout, ``[B * cells * CHARGES, 30]``."""
    batch, cells = lava.shape
    size = math.isqrt(cells)
    dtype = torch.get_default_dtype()
    windows = unfold(lava.to(dtype).view(batch, 1, size, size), kernel_size=5, padding=2).transpose(1, 2)
    cell = torch.arange(cells, device=lava.device)

    def position(index: Tensor) -> Tensor:
        return torch.stack([index % size, index // size], dim=-1).to(dtype) / (size - 1)

    table = torch.empty(batch, cells, CHARGES, OBSERVATION_SIZE, dtype=dtype, device=lava.device)
    table[..., 0:2] = position(cell)[:, None]
    table[..., 2:4] = position(goal)[:, None, None]
    table[..., 4] = torch.arange(CHARGES, device=lava.device) / FULL_CHARGE
    table[..., 5:] = windows[:, :, None]
    return table.flatten(0, 2)
