"""A small network for the steps of a driving chain."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from lightning_cgrpo.tasks.driving.drive_numbers import SECONDS
from lightning_cgrpo.tasks.driving.planner_inputs import CONTEXT


class PlannerHead(nn.Module):
    """An MLP over state, time and context, with residual layers.

    Args:
        size: numbers of an answer (D).
        context: numbers of a context.
        width: of the hidden layers.
        layers: hidden layers.
    """

    def __init__(self, size: int = 2 * SECONDS, context: int = CONTEXT, width: int = 192, layers: int = 3) -> None:
        super().__init__()
        self.first = nn.Linear(size + 3 + context, width)
        self.hidden = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.last = nn.Linear(width, size)

    def forward(self, states: Tensor, times: Tensor, context: Tensor) -> Tensor:
        """Outputs ``[M, D]`` of states ``[M, D]``, times ``[M]`` in [0, 1] and contexts ``[M, C]``."""
        angle = times[:, None] * (math.pi / 2)
        inputs = torch.cat([states, times[:, None], angle.cos(), angle.sin(), context], 1)
        values = self.first(inputs)  # [M, width]
        for layer in self.hidden:
            values = values + layer(nn.functional.silu(values))
        outputs: Tensor = self.last(nn.functional.silu(values))
        return outputs
