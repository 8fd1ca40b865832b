"""The paper's controller: Adam on the logits of a softmax."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn

from lightning_cgrpo.errors import expect
from lightning_cgrpo.multipliers.controller import Controller


def softmax_gradient(logits: Tensor, violations: Tensor) -> Tensor:
    """Gradient ``[1 + K]`` of l(z) = sum_k lambda_k(z) v_k, with lambda = softmax(z), at logits ``[1 + K]``.

    g_k = lambda_k (v_k - v) and, for the reward (v_R = 0), g_R = -lambda_R v, where v = sum_j lambda_j v_j.

    A violated constraint is pushed DOWN while another's violation keeps the mean v above its own.

    Example:
        >>> softmax_gradient(torch.zeros(3), torch.tensor([0.1, 0.4]))
        tensor([-0.0556, -0.0222,  0.0778])
    """
    weights = torch.softmax(logits, dim=0)
    padded = torch.cat([violations.new_zeros(1), violations])
    return weights * (padded - weights @ padded)


class SoftmaxAdam(Controller):
    """lambda = softmax(z), z ascending l(z) = sum_k lambda_k v_k by Adam (paper, section 4; Roy et al., 2021).

    There are 1 + K logits, the reward's learned like the others and all starting at `init`: weights start uniform. A
    constraint that is not observed enters no sum and keeps its logit, its Adam moments and its step count.

    Reduces to z <- z + lr sign(g) with betas (0, 0). With others, too, Adam divides a steady gradient by its size, so a
    violation of 1e-4 moves a logit as fast as one of 0.5, about `lr` an update. Hence rates oscillate around thresholds
    with an amplitude set by `lr`; and an infeasible constraint ends up with all the weight (see `guards`).

    Args:
        lr: of Adam. 0.01 is the paper's for the gridworld; lower it where rates oscillate.
        init: of all logits; only their differences matter, so this is the paper's number and nothing else.
        betas: of Adam.
    """

    logits: nn.ParameterList
    optimizer: torch.optim.Adam

    def __init__(self, lr: float = 0.01, init: float = 0.02, betas: tuple[float, float] = (0.9, 0.999)) -> None:
        super().__init__()
        expect(0 < lr < math.inf, "lr", "positive", lr)
        expect(math.isfinite(init), "init", "finite", init)
        expect(len(betas) == 2 and all(0 <= beta < 1 for beta in betas), "betas", "two numbers in [0, 1)", betas)
        self.lr, self.init, self.betas = lr, init, (betas[0], betas[1])

    @property
    def weights(self) -> Tensor:
        return torch.softmax(self._stacked(), dim=0)

    def _stacked(self) -> Tensor:
        return torch.stack([logit.detach() for logit in self.logits])

    def _allocate(self, size: int) -> None:
        # One parameter each, since Adam leaves one without a gradient alone: its value, moments and step count.
        self.logits = nn.ParameterList(torch.tensor(self.init, dtype=torch.float64) for _ in range(1 + size))
        self.optimizer = torch.optim.Adam(
            self.logits.parameters(), lr=self.lr, betas=self.betas, maximize=True, fused=True
        )

    def _update(self, violations: Tensor, observed: Tensor) -> None:
        gradient = softmax_gradient(self._stacked(), violations)
        for logit, g, used in zip(self.logits, gradient, [True, *observed.tolist()], strict=True):
            logit.grad = g if used else None
        self.optimizer.step()

    def get_extra_state(self) -> dict[int, Any]:
        """Adam's moments and step counts."""
        state: dict[int, Any] = self.optimizer.state_dict()["state"]
        return state

    def set_extra_state(self, state: dict[int, Any]) -> None:
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": copy.deepcopy(state), "param_groups": groups})
