"""Answers by acting in an environment, all episodes at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Protocol

import torch
from torch import Tensor

from lightning_cgrpo.errors import UserError
from lightning_cgrpo.policies.policy import Actor
from lightning_cgrpo.rollout import PromptGroups, Rollouts
from lightning_cgrpo.samplers.sampler import Noise, Sampler

CHECK_EVERY = 4
"""Steps between two searches for ended episodes; a search costs a few idle steps."""


class Episodes(Protocol):
    """M episodes as functions of their states ``[M]``, integers that also identify the episode's world."""

    start: Tensor

    def observe(self, states: Tensor) -> Tensor:
        """Observations ``[M, size]``."""

    def step(self, states: Tensor, actions: Tensor) -> Tensor:
        """Next states after ``actions [M]``; an ended episode keeps its state."""

    def ended(self, states: Tensor) -> Tensor:
        """True for ended episodes, ``[M]`` bool."""

    def report(self, states: Tensor, actions: Tensor, reached: Tensor) -> dict[str, Tensor]:
        """Facts about M steps from `states` to `reached`, ``[M]`` by name."""


class Environment(ABC):
    """Makes episodes of prompts.

    Attributes:
        max_steps: length of the longest episode.
        observation_size: numbers per observation; None if any policy fits.
        actions: their number; None if any policy fits.
    """

    max_steps: int
    observation_size: int | None = None
    actions: int | None = None

    @abstractmethod
    def reset(self, prompts: PromptGroups, group_size: int) -> Episodes:
        """Start ``M = B * group_size`` episodes, each prompt's group in consecutive rows."""


class ActingPolicy(Protocol):
    """A policy for an environment sampler."""

    def actor(self) -> Actor:
        """The policy as a plain function, because calling modules would double the cost of a step."""


class EnvironmentSampler(Sampler):
    """Steps an environment with the policy until every episode ends or reaches `environment.max_steps`.

    Rollouts have ``inputs["observations"] [B, G, T, size]``, exact log-probabilities, and in `info` the environment's
    report, ``[B, G, T]`` by name, 0 after an episode's end.
    """

    def __init__(self, environment: Environment) -> None:
        self.environment, self.longest = environment, environment.max_steps

    def check_policy(self, policy: Any) -> None:
        for name in ("observation_size", "actions"):
            here, there = getattr(self.environment, name), getattr(policy, name, None)
            if here is not None and there is not None and here != there:
                kind = type(self.environment).__name__
                raise UserError(f"Expected policy.{name} to be {here}, as in {kind}, but got {there}.")

    def rollout(self, policy: ActingPolicy, prompts: PromptGroups, group_size: int, noise: Noise) -> Rollouts:
        episodes = self.environment.reset(prompts, group_size)
        return play(policy.actor(), episodes, noise(group_size, self.environment.max_steps))


def play(actor: Actor, episodes: Episodes, draws: Tensor) -> Rollouts:
    """Act until all episodes end or the draws ``[B, G, T]`` in [0, 1), one per step, are used up."""
    horizon = draws.shape[-1]
    steps: list[tuple[Tensor, ...]] = []
    with torch.inference_mode():
        states = episodes.start
        rows = torch.arange(len(states), device=states.device) * horizon
        coming = draws.flatten(0, 1).t().contiguous()  # [T, M], because steps are read one after the other
        for step in range(horizon):
            if step % CHECK_EVERY == 0:
                running = (~episodes.ended(states)).nonzero().squeeze(-1)
                if len(running) < len(rows):
                    states, rows, coming = states[running], rows[running], coming[:, running]
                if len(rows) == 0 and step:
                    break
            logits = actor(episodes.observe(states))
            # Inverse cumulative distribution; the last action takes the rest that rounding leaves.
            actions = (logits.softmax(-1).cumsum(-1)[:, :-1] <= coming[step, :, None]).sum(-1)
            reached = episodes.step(states, actions)
            steps.append((rows + step, states, actions, logits, reached))
            states = reached
    place, states, actions, logits, reached = (torch.cat(column) for column in zip(*steps, strict=True))
    real = (~episodes.ended(states)).nonzero().squeeze(-1)
    place, states, actions, reached = place[real], states[real], actions[real], reached[real]
    log_probs = logits[real].log_softmax(-1).gather(-1, actions[:, None]).squeeze(-1)

    def laid_out(values: Tensor) -> Tensor:
        full = values.new_zeros((draws.numel(), *values.shape[1:]))
        return full.index_copy_(0, place, values).view(*draws.shape, *values.shape[1:])

    return Rollouts(
        actions=laid_out(actions),
        mask=laid_out(torch.ones_like(place, dtype=torch.bool)),
        inputs={"observations": laid_out(episodes.observe(states))},
        log_probs=laid_out(log_probs),
        info={name: laid_out(values) for name, values in episodes.report(states, actions, reached).items()},
    )
