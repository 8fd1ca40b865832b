"""The paper's controller: Adam on the logits of a softmax."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn

from lightning_cgrpo.core.errors import expect
from lightning_cgrpo.multipliers.controller import Controller


def softmax_gradient(logits: Tensor, violations: Tensor) -> Tensor:
    """Gradient ``[1 + K]`` of l(z) = sum_k lambda_k(z) v_k, with lambda = softmax(z), at logits ``[1 + K]``.

    g_k = lambda_k (v_k - v) with v = sum_j lambda_j v_j, and v_R = 0 for the reward.

    Example:
        >>> softmax_gradient(torch.zeros(3), torch.tensor([0.1, 0.4]))
        tensor([-0.0556, -0.0222,  0.0778])
    """
    weights = torch.softmax(logits, dim=0)  # lambda
    with_reward = torch.cat([violations.new_zeros(1), violations])  # [1 + K]
    mean_violation = weights @ with_reward
    return weights * (with_reward - mean_violation)


class SoftmaxAdam(Controller):
    """Moves the logits of a softmax over reward and constraints towards violated constraints, by Adam.

    Adam divides a steady gradient by its size: a violation of 1e-4 moves a logit as fast as 0.5, by `lr` per update.
    Rates oscillate around thresholds, and an infeasible constraint takes all the weight.

        lambda = softmax(z),    z ascends l(z) = sum_k lambda_k v_k

    (Paper, section 4; Roy et al., 2021.) An unobserved constraint keeps its logit and Adam's state.

    Args:
        lr: Adam's learning rate; the paper has 0.01 for the gridworld.
        init: the paper's initial logit, without effect.
    """

    logits: nn.ParameterList
    optimizer: torch.optim.Adam

    def __init__(self, lr: float = 0.01, init: float = 0.02) -> None:
        super().__init__()
        expect(0 < lr < math.inf, "lr", "positive", lr)
        expect(math.isfinite(init), "init", "finite", init)
        self.lr = lr
        self.init = init

    @property
    def weights(self) -> Tensor:
        return torch.softmax(self._stacked_logits(), dim=0)

    def _stacked_logits(self) -> Tensor:
        """Logits ``[1 + K]`` without gradient."""
        return torch.stack([logit.detach() for logit in self.logits])

    def _allocate(self, size: int) -> None:
        # One parameter per logit, because Adam skips a parameter without a gradient.
        self.logits = nn.ParameterList(torch.tensor(self.init, dtype=torch.float64) for _ in range(1 + size))
        self.optimizer = torch.optim.Adam(self.logits.parameters(), lr=self.lr, maximize=True, fused=True)

    def _update(self, violations: Tensor, observed: Tensor) -> None:
        gradients = softmax_gradient(self._stacked_logits(), violations)
        # The reward's logit always moves; Adam skips the logit of an unobserved constraint, which has no gradient.
        moves = [True, *observed.tolist()]
        for logit, gradient, moved in zip(self.logits, gradients, moves, strict=True):
            logit.grad = gradient if moved else None
        self.optimizer.step()

    def get_extra_state(self) -> dict[int, Any]:
        state: dict[int, Any] = self.optimizer.state_dict()["state"]
        return state

    def set_extra_state(self, state: dict[int, Any]) -> None:
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": copy.deepcopy(state), "param_groups": groups})
