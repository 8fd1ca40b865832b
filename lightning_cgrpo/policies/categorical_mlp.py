"""A small policy over discrete actions."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from lightning_cgrpo.policies.policy import Actor, Policy, PolicyOutput
from lightning_cgrpo.rollout import Examples, Rollouts


class CategoricalMLP(Policy):
    """MLP from observations to logits of actions; the training unit is a single step.

    Args:
        hidden: widths of the hidden layers, with ReLU between.
    """

    def __init__(self, observation_size: int, actions: int, hidden: tuple[int, ...] = (128, 128)) -> None:
        super().__init__()
        self.observation_size, self.actions = observation_size, actions
        layers: list[nn.Module] = []
        for size_in, size_out in pairwise((observation_size, *hidden)):
            layers += [nn.Linear(size_in, size_out), nn.ReLU()]
        layers.append(nn.Linear(hidden[-1] if hidden else observation_size, actions))
        self.net = nn.Sequential(*layers)

    def actor(self) -> Actor:
        *hidden, last = [(layer.weight, layer.bias) for layer in self.net if isinstance(layer, nn.Linear)]

        def act(values: Tensor) -> Tensor:
            for weight, bias in hidden:
                values = linear(values, weight, bias).relu_()
            return linear(values, *last)

        return act

    def examples(self, rollouts: Rollouts) -> Examples:
        steps = rollouts.mask.flatten().nonzero().squeeze(-1)
        actions = rollouts.actions.flatten()[steps]
        return Examples(
            inputs={"observations": rollouts.inputs["observations"].flatten(0, 2)[steps]},
            actions=actions,
            mask=torch.ones_like(actions, dtype=torch.bool),
            group=steps // (rollouts.mask.shape[1] * rollouts.mask.shape[2]),
        )

    def placeholder(self) -> Examples:
        weight = next(self.parameters())
        observation = torch.zeros(1, weight.shape[1], dtype=weight.dtype, device=weight.device)
        action = torch.zeros(1, dtype=torch.int64, device=weight.device)
        return Examples({"observations": observation}, action, action == 0, group=action)

    def forward(self, examples: Examples) -> PolicyOutput:
        log_probs = self.actor()(examples.inputs["observations"]).log_softmax(-1)
        taken = log_probs.gather(-1, examples.actions[:, None]).sum(-1)  # FSDP would warn about a view
        return PolicyOutput(taken, -(log_probs.exp() * log_probs).sum(-1))
