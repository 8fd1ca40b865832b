"""Signals of the shipped worlds: functions of facts about steps, see `GymnasiumTask`."""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_cgrpo.core.rollout import Signal

HALF_TRACK = 0.5
"""Distance of CartPole's cart from the middle."""
HALF_TORQUE = 1.0
"""Half of Pendulum's largest torque."""
HOPPER_VELOCITY = 0.7402
"""Limit of Safety-Gymnasium's SafetyHopperVelocity-v1, in m/s."""


def cart_is_far(observation: Tensor) -> Tensor:
    """Steps ``[B, G, T]`` after which CartPole's cart is far from the middle."""
    return observation[..., 0].abs() > HALF_TRACK


def torque_is_hard(action: Tensor) -> Tensor:
    """Steps ``[B, G, T]`` with more than half of Pendulum's torque."""
    return action[..., 0].abs() > HALF_TORQUE


def fast_steps(info_x_velocity: Tensor, mask: Tensor) -> Signal:
    """The number of an episode's steps above Hopper's limit; a critic gets each at its step."""
    fast = (info_x_velocity > HOPPER_VELOCITY).float()
    total = torch.where(mask, fast, 0).sum(-1)
    return Signal(fast, count=total)


def reached_the_goal(reward: Tensor) -> Tensor:
    """MiniGrid's episodes ``[B, G]`` that reach the goal, the only steps with a reward."""
    return reward.sum(-1) > 0


def ended_in_lava(reward: Tensor, terminated: Tensor) -> Tensor:
    """MiniGrid's episodes ``[B, G]`` that terminate, and not at the goal."""
    return terminated.any(-1) & ~reached_the_goal(reward)
