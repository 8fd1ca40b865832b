"""Generalized advantage estimation."""

from __future__ import annotations

import torch
from torch import Tensor


def generalized_advantages(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, gae_lambda: float) -> Tensor:
    """Generalized advantages ``[..., T]``, 0 outside the mask (Schulman et al., 2016, eq. 16).

    A_t = sum_l (gamma gae_lambda)^l d_{t+l} with d_t = r_t + gamma V_{t+1} - V_t, and V = 0 after the last step. With
    gae_lambda 1, A_t + V_t is the discounted sum of rewards from t on. Steps outside the mask take no time.

    Args:
        rewards: ``[..., T]``, 0 outside the mask.
        values: ``[..., T]``, predictions before each step.
        mask: ``[..., T]`` bool, the policy's own steps.
    """
    next_value = torch.zeros_like(values[..., 0])  # V_{t+1}
    next_advantage = torch.zeros_like(values[..., 0])  # A_{t+1}
    steps = list(zip(rewards.unbind(-1), values.unbind(-1), mask.unbind(-1), strict=True))
    advantages = []
    # From the last step to the first: A_t = d_t + gamma gae_lambda A_{t+1}.
    for reward, value, acts in reversed(steps):
        advantage = reward + gamma * next_value - value + gamma * gae_lambda * next_advantage
        advantages.append(torch.where(acts, advantage, 0))
        # A step outside the mask takes no time, so the values after it stay.
        next_advantage = torch.where(acts, advantage, next_advantage)
        next_value = torch.where(acts, value, next_value)
    return torch.stack(advantages[::-1], -1)
