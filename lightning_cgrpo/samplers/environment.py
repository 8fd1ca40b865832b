"""Answers by acting in an environment, all episodes of a batch at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

import torch
from torch import Tensor

from lightning_cgrpo.rollout import PromptGroups, Rollouts
from lightning_cgrpo.samplers import Noise, Sampler


class Episodes(Protocol):
    """M running episodes of a vectorized environment."""

    def observe(self) -> Tensor:
        """Observations ``[M, size]``."""

    def step(self, actions: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Act with ``actions [M]``; returns which episodes ended ``[M]`` bool, and what happened, by name ``[M]``."""

    def keep(self, rows: Tensor) -> None:
        """Drop all episodes but ``rows``, in this order."""


class Environment(ABC):
    """Makes episodes of prompts.

    Attributes:
        max_steps: length of the longest episode.
    """

    max_steps: int

    @abstractmethod
    def reset(self, prompts: PromptGroups, group_size: int) -> Episodes:
        """Start ``M = B * group_size`` episodes, the group of each prompt in consecutive rows."""


class CategoricalPolicy(Protocol):
    """What an environment sampler needs of a policy."""

    def action_log_probs(self, observations: Tensor) -> Tensor:
        """Log-probabilities ``[M, actions]``."""


class EnvironmentSampler(Sampler):
    """Steps an environment with the policy until every episode ended or the environment's `max_steps` are over.

    Rollouts have ``inputs["observations"] [B, G, T, size]``, the log-probabilities under which actions were sampled,
    and in `info` what the environment reported, ``[B, G, T]`` by name, 0 after an episode's end.

    Args:
        environment: what to act in.
    """

    def __init__(self, environment: Environment) -> None:
        self.environment = environment

    def rollout(self, policy: CategoricalPolicy, prompts: PromptGroups, group_size: int, noise: Noise) -> Rollouts:
        with torch.inference_mode():
            record = self._run(policy, prompts, group_size, noise)
        # Cloned outside of inference mode, tensors can take part in training.
        return Rollouts(
            actions=record.pop("actions").clone(),
            mask=record.pop("mask").clone(),
            inputs={"observations": record.pop("observations").clone()},
            log_probs=record.pop("log_probs").clone(),
            info={name: tensor.clone() for name, tensor in record.items()},
        )

    def _run(
        self, policy: CategoricalPolicy, prompts: PromptGroups, group_size: int, noise: Noise
    ) -> dict[str, Tensor]:
        horizon = self.environment.max_steps
        running = self.environment.reset(prompts, group_size)
        episodes = len(prompts) * group_size
        # One random number per step, drawn up front; [T, M], since steps are read one after the other.
        draws = noise(group_size, horizon).flatten(0, 1).t().contiguous()
        rows = torch.arange(episodes, device=draws.device)
        steps: list[dict[str, Tensor]] = []
        for step in range(horizon):
            observations = running.observe()
            log_probs = policy.action_log_probs(observations)
            # Inverse CDF; the last action takes what rounding leaves.
            below = log_probs[:, :-1].exp().cumsum(-1) <= draws[step, rows, None].to(log_probs.dtype)
            actions = below.sum(-1)
            ended, happened = running.step(actions)
            steps.append(
                {
                    "position": rows * horizon + step,
                    "observations": observations,
                    "actions": actions,
                    "log_probs": log_probs.gather(-1, actions[:, None]).squeeze(-1),
                    **happened,
                }
            )
            if bool(ended.any()):
                going_on = (~ended).nonzero().squeeze(-1)
                rows = rows[going_on]
                running.keep(going_on)
            if len(rows) == 0:
                break
        return _layout(steps, (len(prompts), group_size, horizon))


def _layout(steps: list[dict[str, Tensor]], shape: tuple[int, int, int]) -> dict[str, Tensor]:
    """Records of the episodes that were running at each step, as ``[B, G, T, ...]`` tensors with their mask."""
    names = [name for name in steps[0] if name != "position"]
    position = torch.cat([step["position"] for step in steps])
    total = shape[0] * shape[1] * shape[2]
    mask = torch.zeros(total, dtype=torch.bool, device=position.device)
    mask[position] = True
    record = {"mask": mask.view(shape)}
    for name in names:
        values = torch.cat([step[name] for step in steps])
        full = values.new_zeros((total, *values.shape[1:]))
        full[position] = values
        record[name] = full.view(*shape, *values.shape[1:])
    return record
