"""A small policy over discrete actions, for environments."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from lightning_cgrpo.policies import Policy, PolicyOutput
from lightning_cgrpo.rollout import Examples, Rollouts


class CategoricalMLP(Policy):
    """Observation in, action logits out; each step is a training unit of its own.

    Args:
        observation_size: numbers per observation.
        actions: number of actions.
        hidden: widths of the hidden layers, with ReLU between.
    """

    def __init__(self, observation_size: int, actions: int, hidden: tuple[int, ...] = (128, 128)) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for size_in, size_out in pairwise((observation_size, *hidden)):
            layers += [nn.Linear(size_in, size_out), nn.ReLU()]
        layers.append(nn.Linear(hidden[-1] if hidden else observation_size, actions))
        self.net = nn.Sequential(*layers)

    def action_log_probs(self, observations: Tensor) -> Tensor:
        """Log-probabilities ``[M, actions]`` of all actions for observations ``[M, observation_size]``."""
        logits: Tensor = self.net(observations)
        return logits.log_softmax(-1)

    def examples(self, rollouts: Rollouts) -> Examples:
        steps = rollouts.mask.flatten().nonzero().squeeze(-1)
        actions = rollouts.actions.flatten()[steps]
        return Examples(
            inputs={"observations": rollouts.inputs["observations"].flatten(0, 2)[steps]},
            actions=actions,
            mask=torch.ones_like(actions, dtype=torch.bool),
            group=steps // (rollouts.mask.shape[1] * rollouts.mask.shape[2]),
        )

    def forward(self, examples: Examples) -> PolicyOutput:
        log_probs = self.action_log_probs(examples.inputs["observations"])
        taken = log_probs.gather(-1, examples.actions[:, None]).squeeze(-1)
        return PolicyOutput(taken, -(log_probs.exp() * log_probs).sum(-1))
