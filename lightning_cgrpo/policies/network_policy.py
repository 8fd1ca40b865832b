"""Policies for environments: a network, and the distribution that its outputs parameterize."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from lightning_cgrpo.core.rollout import Examples, Rollouts
from lightning_cgrpo.policies.action_distributions import ActionDistribution, Categorical
from lightning_cgrpo.policies.policy import Policy, PolicyOutput

Actor = Callable[..., Any]
"""Outputs ``[M, outputs]`` of observations ``[M, ...]``; with a memory ``[M, H]``, the outputs and the next memory."""


def floating(observations: Tensor) -> Tensor:
    """Observations as a network takes them; images are stored as bytes, a quarter of their size."""
    if observations.dtype == torch.uint8:
        return observations.to(torch.get_default_dtype())
    return observations


class NetworkPolicy(Policy):
    """Acts by any network from observations ``[N, ...]`` to outputs ``[N, outputs]``; the training unit is a step.

    Args:
        net: its outputs are logits of the actions, or the means and logarithms of standard deviations of `Gaussian`.
        distribution: of the actions; by default `Categorical`.
    """

    net: nn.Module
    distribution: ActionDistribution = Categorical()

    def __init__(self, net: nn.Module, distribution: ActionDistribution | None = None) -> None:
        super().__init__()
        self.net = net
        if distribution is not None:
            self.distribution = distribution

    @property
    def action_size(self) -> int | None:
        return self.distribution.action_size

    def actor(self) -> Actor:
        """The network as a function, for sampling."""
        return self.net

    def memory(self, episodes: int) -> Tensor | None:
        """Memory ``[episodes, H]`` before the first step; None for a network without memory."""
        return None

    def examples(self, rollouts: Rollouts) -> Examples:
        steps = rollouts.mask.flatten().nonzero().squeeze(-1)
        actions = rollouts.actions.flatten(0, 2)[steps]
        return Examples(
            inputs={"observations": rollouts.inputs["observations"].flatten(0, 2)[steps]},
            actions=actions,
            mask=torch.ones_like(steps, dtype=torch.bool),
            group=steps // (rollouts.mask.shape[1] * rollouts.mask.shape[2]),
        )

    def forward(self, examples: Examples, reference: PolicyOutput | None = None) -> PolicyOutput:
        outputs = self.actor()(floating(examples.inputs["observations"]))
        return self._evaluate_outputs(outputs, examples, reference)

    def _evaluate_outputs(self, outputs: Tensor, examples: Examples, reference: PolicyOutput | None) -> PolicyOutput:
        kl = None if reference is None else self.distribution.kl(outputs, *reference.parameters)
        output = self.distribution.evaluate(outputs, examples.actions)
        return replace(output, parameters=(outputs,), kl=kl)


class RecurrentPolicy(NetworkPolicy):
    """Acts by a network with memory; the training unit is a whole episode.

    `net` maps observations ``[N, T, ...]`` and a memory ``[N, H]`` to outputs ``[N, T, outputs]`` and the next memory.
    Sampling calls it with T = 1. The memory is 0 at first, and gradients reach back to an episode's first step.

    Args:
        net: as above.
        memory_size: numbers of the memory (H).
        distribution: of the actions; by default `Categorical`.
    """

    def __init__(self, net: nn.Module, memory_size: int, distribution: ActionDistribution | None = None) -> None:
        super().__init__(net, distribution)
        self.memory_size = memory_size

    def actor(self) -> Actor:
        def act(observations: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
            outputs, memory = self.net(observations[:, None], memory)
            return outputs[:, 0], memory

        return act

    def memory(self, episodes: int) -> Tensor:
        weight = next(self.parameters())
        return torch.zeros(episodes, self.memory_size, dtype=weight.dtype, device=weight.device)

    def examples(self, rollouts: Rollouts) -> Examples:
        prompts, group_size, _ = rollouts.mask.shape
        group = torch.arange(prompts, device=rollouts.mask.device).repeat_interleave(group_size)
        inputs = {"observations": rollouts.inputs["observations"].flatten(0, 1)}
        return Examples(inputs, rollouts.actions.flatten(0, 1), rollouts.mask.flatten(0, 1), group)

    def forward(self, examples: Examples, reference: PolicyOutput | None = None) -> PolicyOutput:
        observations = examples.inputs["observations"][:, : examples.mask.shape[1]]  # steps without padding
        outputs, _ = self.net(floating(observations), self.memory(len(examples)))
        return self._evaluate_outputs(outputs, examples, reference)
