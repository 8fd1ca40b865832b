"""Advantages of steps without a critic: returns-to-go beside those of the group's other answers."""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_cgrpo.core.errors import expect
from lightning_cgrpo.core.rollout import Rollouts
from lightning_cgrpo.grpo.advantages import AdvantageEstimator
from lightning_cgrpo.grpo.gae import generalized_advantages
from lightning_cgrpo.objective.group_statistics import GroupStatistics, divide_or_zero, group_statistics
from lightning_cgrpo.objective.objective import Components


class ReturnsToGo(AdvantageEstimator):
    """Scalarized advantages of each step: an action is credited with what follows it.

    With the return-to-go X_j,i,t = sum_s gamma^s x_j,i,t+s of component j, A_i,t = sum_j w_j (X_j,i,t - b_j,t) / std_j.
    The baseline b_j,t is the mean over the group's answers that take step t, and std_j the root mean square of the
    differences over all steps of the group. A signal of whole answers is a reward at the last step: in answers of equal
    lengths, with gamma 1, its advantage is that of `ScalarizedAdvantages` with scale `group`.

    Args:
        gamma: discount per step; 1 for none.
    """

    def __init__(self, gamma: float = 1.0) -> None:
        expect(0 <= gamma <= 1, "gamma", "in [0, 1]", gamma)
        self.gamma = gamma

    def __call__(self, rollouts: Rollouts, statistics: GroupStatistics, weights: Tensor) -> Tensor:
        """Advantages ``[B, G, T]``."""
        mask_BGT = rollouts.mask
        # Without a critic's values and with lambda 1, generalized advantages are the returns-to-go.
        rewards_JBGT = statistics.components.by_step(mask_BGT).double()
        no_values_JBGT = torch.zeros_like(rewards_JBGT)
        returns_JBGT = generalized_advantages(rewards_JBGT, no_values_JBGT, mask_BGT, self.gamma, 1.0)
        # Compare each step with the same step of the group's other answers.
        used_JBGT = mask_BGT & statistics.applicable[..., None]
        deviation_JBGT, std_JB = step_deviations(returns_JBGT.to(statistics.dtype), used_JBGT)
        standardized_JBGT = divide_or_zero(deviation_JBGT, std_JB[..., None, None])
        advantages_BGT = torch.einsum("j,jbgt->bgt", weights.to(std_JB), standardized_JBGT)
        return advantages_BGT.to(statistics.dtype)

    def effective_weights(self, statistics: GroupStatistics, weights: Tensor) -> Tensor:
        return weights[:, None].expand_as(statistics.std)


def step_deviations(returns: Tensor, used: Tensor) -> tuple[Tensor, Tensor]:
    """Differences ``[J, B, G, T]`` from the group's mean at each step, and their root mean square ``[J, B]``; float64.

    Args:
        returns: ``[J, B, G, T]``.
        used: ``[J, B, G, T]`` bool, the steps that answers take, and to which a component applies.
    """
    _, prompts, _, steps = returns.shape
    # Each step of a prompt's answers is a group of its own.
    components = Components(_by_step_groups(returns), _by_step_groups(used))
    deviation = group_statistics(components).deviation  # [J, B T, G]
    deviation = deviation.unflatten(1, (prompts, steps)).transpose(2, 3)  # [J, B, G, T]
    # One deviation for all steps of a prompt's group.
    squares = deviation.square().sum((2, 3))  # [J, B]
    number = used.sum((2, 3)).clamp(min=1)  # [J, B]
    return deviation, (squares / number).sqrt()


def _by_step_groups(values: Tensor) -> Tensor:
    """``[J, B T, G]`` of values ``[J, B, G, T]``: one group for each step of a prompt."""
    return values.transpose(2, 3).flatten(1, 2)
