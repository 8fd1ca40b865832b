"""Answers by chains, all at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.rollout import PromptGroups, Rollouts
from lightning_cgrpo.policies.chain_policy import ChainPolicy
from lightning_cgrpo.samplers.sampler import Noise, Sampler
from lightning_cgrpo.settings.objects import Stated


class PlannerInputs(Stated, ABC):
    """Turns prompts into a planner's contexts, and the numbers of its answers into what the task scores.

    Attributes:
        size: numbers of an answer (D).
    """

    size: int

    @abstractmethod
    def context(self, prompts: PromptGroups) -> Tensor:
        """Contexts ``[B, ...]`` of the network."""

    @abstractmethod
    def answers(self, prompts: PromptGroups, numbers: Tensor) -> Mapping[str, Any]:
        """Facts for the task by name, `Rollouts.info`, from the answers' numbers ``[B, G, D]``."""


class ChainSampler(Sampler):
    """Samples chains of a `ChainPolicy`.

    Rollouts have the states after each step as actions ``[B, G, K, D]``, exact log-probabilities, and the inputs
    ``context`` ``[B, ...]`` and ``start`` ``[B, G, D]``.
    """

    def __init__(self, inputs: PlannerInputs) -> None:
        self.inputs = inputs

    def check_policy(self, policy: Any) -> None:
        if not isinstance(policy, ChainPolicy):
            raise UserError(
                f"Expected a ChainPolicy, but got {type(policy).__name__}, try lightning_cgrpo.ChainPolicy."
            )
        if policy.size != self.inputs.size:
            raise UserError(
                f"Expected policy.size to be {self.inputs.size}, the numbers of an answer of "
                f"{type(self.inputs).__name__}, but got {policy.size}."
            )

    def rollout(self, policy: ChainPolicy, prompts: PromptGroups, group_size: int, noise: Noise) -> Rollouts:
        context = self.inputs.context(prompts)
        draws = noise(group_size, policy.draws())
        chains = policy.sample(context.repeat_interleave(group_size, 0), draws.flatten(0, 1))

        def grouped(values: Tensor) -> Tensor:
            return values.unflatten(0, (len(prompts), group_size))

        states = grouped(chains.states)
        return Rollouts(
            actions=states,
            mask=torch.ones(states.shape[:3], dtype=torch.bool, device=states.device),
            inputs={"context": context, "start": grouped(chains.start)},
            log_probs=grouped(chains.log_probs),
            info=dict(self.inputs.answers(prompts, states[:, :, -1])),
        )
