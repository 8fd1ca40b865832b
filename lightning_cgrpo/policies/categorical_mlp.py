"""A small policy over discrete actions."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from lightning_cgrpo.core.rollout import Examples
from lightning_cgrpo.policies.network_policy import Actor, NetworkPolicy
from lightning_cgrpo.policies.normalized_observations import NormalizedObservations


class CategoricalMLP(NetworkPolicy):
    """MLP from observations to logits of actions; the training unit is a single step.

    Args:
        hidden: widths of the hidden layers, with ReLU between.
        normalize: `NormalizedObservations` before the first layer.
    """

    def __init__(
        self, observation_size: int, actions: int, hidden: tuple[int, ...] = (128, 128), normalize: bool = False
    ) -> None:
        super().__init__(mlp(observation_size, actions, hidden, normalize))
        self.observation_size = observation_size
        self.actions = actions

    def actor(self) -> Actor:
        return without_modules(self.net)

    def placeholder(self) -> Examples:
        weight = next(self.parameters())
        observation = torch.zeros(1, weight.shape[1], dtype=weight.dtype, device=weight.device)
        action = torch.zeros(1, dtype=torch.int64, device=weight.device)
        return Examples({"observations": observation}, action, action == 0, group=action)


def mlp(observation_size: int, outputs: int, hidden: tuple[int, ...], normalize: bool = False) -> nn.Sequential:
    """Linear layers of widths `hidden` with ReLU between, from ``[N, observation_size]`` to ``[N, outputs]``."""
    layers: list[nn.Module] = []
    if normalize:
        layers.append(NormalizedObservations(observation_size))
    widths = (observation_size, *hidden)
    for size_in, size_out in pairwise(widths):
        layers += [nn.Linear(size_in, size_out), nn.ReLU()]
    layers.append(nn.Linear(widths[-1], outputs))
    return nn.Sequential(*layers)


def without_modules(net: nn.Module) -> Actor:
    """The MLP as a plain function, because calling modules would double the cost of a step."""
    normalize = next((layer for layer in net.children() if isinstance(layer, NormalizedObservations)), None)
    *hidden, last = [(layer.weight, layer.bias) for layer in net.children() if isinstance(layer, nn.Linear)]

    def act(values: Tensor) -> Tensor:
        if normalize is not None:
            values = normalize(values)
        for weight, bias in hidden:
            values = linear(values, weight, bias).relu_()
        return linear(values, *last)

    return act
