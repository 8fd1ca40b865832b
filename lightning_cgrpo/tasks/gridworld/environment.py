"""Dynamics of the gridworld."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import unfold

from lightning_cgrpo.core.rollout import PromptGroups
from lightning_cgrpo.samplers.environment import Environment

ACTIONS = ("up", "down", "left", "right", "stay")
STAY = ACTIONS.index("stay")
FULL_CHARGE = 20
"""In units of 5 %, because floats miss the threshold of 10 %."""
CHARGES = FULL_CHARGE + 1
LOW_CHARGE, RECHARGE = 2, 4


class Gridworld(Environment):
    """The paper's gridworld (appendix C), vectorized over episodes.

    Observations:
        30 numbers: x, y, goal x, goal y and charge in [0, 1], and the 5x5 lava map around the agent, 0 off the grid.
    Actions:
        up, down, left, right: one cell, or none against a wall; drains 5 % of a full charge.
        stay: recharges 20 %.
    Reward:
        ``goal``: the step reached the goal.
    Costs:
        ``lava``: the step ended on lava, standing still included.
        ``battery``: the charge after the step is below 10 %.
    Ends when:
        the agent reaches the goal, or after `max_steps`.

    Args:
        max_steps: longest episode.
    """

    observation_size = 30
    actions = 5

    def __init__(self, max_steps: int = 80) -> None:
        self.max_steps = max_steps

    def reset(self, prompts: PromptGroups, group_size: int) -> GridworldEpisodes:
        return GridworldEpisodes(prompts, group_size)


class GridworldEpisodes:
    """Episodes as lookup tables over states (layout * cells + cell) * `CHARGES` + charge."""

    def __init__(self, prompts: PromptGroups, group_size: int) -> None:
        start = prompts.column("start", "Gridworld")  # [B]
        goal = prompts.column("goal", "Gridworld")  # [B]
        lava = prompts.column("lava", "Gridworld")  # [B, cells]
        batch, cells = lava.shape
        layouts = torch.arange(batch, device=lava.device)
        self._lava = lava.flatten()
        self._goal = torch.zeros_like(lava).scatter_(1, goal[:, None], True).flatten()
        self._observations = _observations(lava, goal)
        # The next state of each state and action, [B, cells * charges, actions]; no action leaves the goal.
        in_layout = state_transitions(math.isqrt(cells)).to(lava.device)
        reached = in_layout + (layouts * len(in_layout))[:, None, None]
        at_goal = (layouts * cells + goal)[:, None] * CHARGES + torch.arange(CHARGES, device=lava.device)
        reached.view(-1, len(ACTIONS))[at_goal] = at_goal[..., None]
        self._next = reached.flatten()
        first_states = (layouts * cells + start) * CHARGES + FULL_CHARGE
        self.start = first_states.repeat_interleave(group_size)

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
def state_transitions(size: int) -> Tensor:
    """Next states ``[cells * CHARGES, actions]`` of a layout without goal; a state is cell * `CHARGES` + charge."""
    change = torch.full((len(ACTIONS),), -1)
    change[STAY] = RECHARGE
    charge = (torch.arange(CHARGES)[:, None] + change).clamp_(0, FULL_CHARGE)
    return (cell_transitions(size)[:, None] * CHARGES + charge).flatten(0, 1)


def cell_transitions(size: int) -> Tensor:
    """Next cells ``[cells, actions]``; cells count row by row from the top."""
    cell = torch.arange(size * size)
    y, x = cell // size, cell % size
    up = (y - 1).clamp(min=0) * size + x
    down = (y + 1).clamp(max=size - 1) * size + x
    left = y * size + (x - 1).clamp(min=0)
    right = y * size + (x + 1).clamp(max=size - 1)
    return torch.stack([up, down, left, right, cell], dim=1)


def _observations(lava: Tensor, goal: Tensor) -> Tensor:
    """Observations ``[B * cells * CHARGES, 30]`` of every state."""
    batch, cells = lava.shape
    size = math.isqrt(cells)
    dtype = torch.get_default_dtype()
    maps = lava.to(dtype).view(batch, 1, size, size)
    windows = unfold(maps, kernel_size=5, padding=2).transpose(1, 2)  # [B, cells, 25]
    cell = torch.arange(cells, device=lava.device)

    def position(index: Tensor) -> Tensor:
        """Coordinates x and y of cells, in [0, 1]."""
        return torch.stack([index % size, index // size], dim=-1).to(dtype) / (size - 1)

    of_cells = torch.empty(batch, cells, Gridworld.observation_size, dtype=dtype, device=lava.device)
    of_cells[..., 0:2] = position(cell)
    of_cells[..., 2:4] = position(goal)[:, None]
    of_cells[..., 5:] = windows
    table = of_cells[:, :, None].repeat(1, 1, CHARGES, 1)  # [B, cells, charges, 30]
    table[..., 4] = torch.arange(CHARGES, device=lava.device) / FULL_CHARGE
    return table.flatten(0, 2)
