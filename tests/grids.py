"""A small module for the gridworld."""

import torch

from lightning_cgrpo import CategoricalMLP, ConstrainedGRPO, EnvironmentSampler, Objective
from lightning_cgrpo.tasks.gridworld import Gridworld, GridworldTask


def grid_module(constraints=None, max_steps=10, lr=1e-3, hidden=16, **parts):
    """A module for the gridworld, whose first weights are always the same."""
    torch.manual_seed(0)
    usual = {
        "policy": CategoricalMLP(30, 5, [hidden]),
        "sampler": EnvironmentSampler(Gridworld(max_steps)),
        "task": GridworldTask(),
        "objective": Objective("goal", constraints or {}),
        "optimizer": lambda parameters: torch.optim.Adam(parameters, lr=lr),
        "group_size": 4,
    }
    return ConstrainedGRPO(**{**usual, **parts})
