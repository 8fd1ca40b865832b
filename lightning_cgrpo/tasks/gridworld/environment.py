"""The dynamics of the gridworld: move or recharge, mind the lava, reach the goal."""

from __future__ import annotations

import math

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

    def __init__(self, max_steps: int = 80, recharge: int = 4) -> None:
        self.max_steps, self.recharge = max_steps, recharge

    def reset(self, prompts: PromptGroups, group_size: int) -> GridworldEpisodes:
        columns = prompts.columns
        return GridworldEpisodes(columns["start"], columns["goal"], columns["lava"], group_size, self.recharge)


class GridworldEpisodes:
    """Running episodes: a cell and a charge each.

    What depends on the cell alone is a table over the cells of all layouts, so an episode's cell counts through them.
    """

    def __init__(self, start: Tensor, goal: Tensor, lava: Tensor, group_size: int, recharge: int) -> None:
        batch, cells = lava.shape
        first = torch.arange(batch, device=lava.device) * cells
        self._recharge = recharge
        self._observations = _observations(lava, goal)
        self._lava = lava.flatten()
        self._next = (moves(math.isqrt(cells)).to(lava.device) + first[:, None, None]).flatten()
        self._cell = (start + first).repeat_interleave(group_size)
        self._goal = (goal + first).repeat_interleave(group_size)
        self._battery = torch.full_like(self._cell, FULL_CHARGE)

    def observe(self) -> Tensor:
        observations = self._observations[self._cell]
        observations[:, 4] = self._battery / FULL_CHARGE
        return observations

    def step(self, actions: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        self._cell = self._next[self._cell * len(ACTIONS) + actions]
        change = torch.where(actions == STAY, self._recharge, -1)
        self._battery = (self._battery + change).clamp_(0, FULL_CHARGE)
        goal = self._cell == self._goal
        return goal, {"goal": goal, "lava": self._lava[self._cell], "battery": self._battery < LOW_CHARGE}

    def keep(self, rows: Tensor) -> None:
        self._cell, self._goal, self._battery = self._cell[rows], self._goal[rows], self._battery[rows]


def moves(size: int) -> Tensor:
    """The cell reached from each cell by each action, ``[cells, actions]``."""
    cell = torch.arange(size * size)
    y, x = cell // size, cell % size
    up, down = (y - 1).clamp(min=0) * size + x, (y + 1).clamp(max=size - 1) * size + x
    left, right = y * size + (x - 1).clamp(min=0), y * size + (x + 1).clamp(max=size - 1)
    return torch.stack([up, down, left, right, cell], dim=1)


def _observations(lava: Tensor, goal: Tensor) -> Tensor:
    """Observations of every cell of every layout with the battery left at 0, ``[B * cells, 30]``."""
    batch, cells = lava.shape
    size = math.isqrt(cells)
    dtype = torch.get_default_dtype()
    windows = unfold(lava.to(dtype).view(batch, 1, size, size), kernel_size=5, padding=2).transpose(1, 2)
    cell = torch.arange(cells, device=lava.device)

    def position(index: Tensor) -> Tensor:
        return torch.stack([index % size, index // size], dim=-1).to(dtype) / (size - 1)

    here = position(cell).expand(batch, -1, -1)
    there = position(goal)[:, None].expand(-1, cells, -1)
    return torch.cat([here, there, lava.new_zeros((batch, cells, 1), dtype=dtype), windows], -1).flatten(0, 1)
