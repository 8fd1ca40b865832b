"""Generalized advantage estimation."""

from __future__ import annotations

import torch
from torch import Tensor


def generalized_advantages(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, gae_lambda: float) -> Tensor:
    """Generalized advantages ``[..., T]``, 0 after an answer's end (Schulman et al., 2016, eq. 16).

    A_t = sum_l (gamma gae_lambda)^l d_{t+l} with d_t = r_t + gamma V_{t+1} - V_t, and V = 0 after the last step. With
    gae_lambda 1, A_t + V_t is the discounted sum of rewards from t on.

    Args:
        rewards: ``[..., T]``, 0 after an answer's end.
        values: ``[..., T]``, predictions before each step.
        mask: ``[..., T]`` bool, an answer's steps, which come first.
    """
    values = torch.where(mask, values, 0)
    following = torch.cat([values[..., 1:], torch.zeros_like(values[..., :1])], -1)
    errors = torch.where(mask, rewards + gamma * following - values, 0)
    running = torch.zeros_like(errors[..., 0])
    found = []
    for error in reversed(errors.unbind(-1)):
        running = error + gamma * gae_lambda * running
        found.append(running)
    return torch.stack(found[::-1], -1)
