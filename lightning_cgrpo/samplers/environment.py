"""Answers by acting in an environment, all episodes at once."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from lightning_cgrpo.core.copies import copied
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.rollout import PromptGroups, Rollouts
from lightning_cgrpo.policies.action_distributions import ActionDistribution, Categorical, Gaussian
from lightning_cgrpo.policies.network_policy import NetworkPolicy, floating
from lightning_cgrpo.policies.policy import Policy
from lightning_cgrpo.samplers.sampler import Noise, Sampler
from lightning_cgrpo.settings.objects import Stated

CHECK_EVERY = 4
"""Steps between two searches for ended episodes; a search costs a few idle steps."""


class Episodes(Protocol):
    """M episodes as functions of their states ``[M]``, integers that also identify the episode's world.

    All methods get copies, which they may change in place.
    """

    start: Tensor

    def observe(self, states: Tensor) -> Tensor:
        """Observations ``[M, size]``, or of another shape that the policy's network takes; images may be bytes."""

    def step(self, states: Tensor, actions: Tensor) -> Tensor:
        """Next states after actions ``[M]``, or ``[M, D]`` if continuous; an ended episode keeps its state."""

    def ended(self, states: Tensor) -> Tensor:
        """True for ended episodes, ``[M]`` bool."""

    def report(self, states: Tensor, actions: Tensor, reached: Tensor) -> dict[str, Tensor]:
        """Facts about M steps from `states` to `reached`, ``[M, ...]`` by name."""


class Environment(Stated, ABC):
    """Makes episodes of prompts.

    Attributes:
        max_steps: length of the longest episode.
        observation_size: numbers per observation; None if any policy fits.
        actions: their number; None if any policy fits.
        action_size: numbers of a continuous action (D); None for discrete actions.
        low: lower bounds of a continuous action, D numbers; None if unbounded.
        high: upper bounds.
    """

    max_steps: int
    observation_size: int | None = None
    actions: int | None = None
    action_size: int | None = None
    low: tuple[float, ...] | None = None
    high: tuple[float, ...] | None = None

    @abstractmethod
    def reset(self, prompts: PromptGroups, group_size: int) -> Episodes:
        """Start ``M = B * group_size`` episodes, each prompt's group in consecutive rows."""


class EnvironmentSampler(Sampler):
    """Steps an environment with the policy until every episode ends or reaches `environment.max_steps`.

    Rollouts have ``inputs["observations"] [B, G, T, size]``, exact log-probabilities, and in `info` the environment's
    report, ``[B, G, T, ...]`` by name, 0 after an episode's end.
    """

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.longest = environment.max_steps

    def check_policy(self, policy: Policy) -> None:
        if not isinstance(policy, NetworkPolicy):
            raise UserError(
                f"Expected a NetworkPolicy, which acts, but got {type(policy).__name__}, try CategoricalMLP."
            )
        world = self.environment
        distribution = policy.distribution
        kind = type(world).__name__
        for name in ("observation_size", "actions"):
            expected = getattr(world, name)
            actual = getattr(policy, name, None)
            if expected is not None and actual is not None and expected != actual:
                raise UserError(f"Expected policy.{name} to be {expected}, as in {kind}, but got {actual}.")
        size = distribution.action_size
        if world.action_size is None and size is not None:
            raise UserError(
                f"Expected a policy with discrete actions, as in {kind}, but got actions of {size} "
                "numbers, try CategoricalMLP."
            )
        if world.action_size is not None and world.action_size != size:
            got = "discrete actions" if size is None else f"actions of {size} numbers"
            raise UserError(
                f"Expected a policy with actions of {world.action_size} numbers, as in {kind}, but got {got}, "
                f"try GaussianMLP with action_size: {world.action_size}."
            )
        if not isinstance(distribution, Gaussian):
            return
        low, high = distribution.low, distribution.high
        if not (_equal_bounds(world.low, low) and _equal_bounds(world.high, high)):
            raise UserError(
                f"Expected the policy's bounds to be those of {kind}, low {world.low} and high {world.high}, but got "
                f"low {low} and high {high}."
            )

    def rollout(self, policy: NetworkPolicy, prompts: PromptGroups, group_size: int, noise: Noise) -> Rollouts:
        episodes = self.environment.reset(copied(prompts), group_size)
        size = policy.action_size
        if size is None:
            draws = noise(group_size, self.environment.max_steps)
            outputs = self.environment.actions
        else:
            draws = noise(group_size, self.environment.max_steps, size)
            outputs = 2 * size  # a mean and a spread of each number
        if type(policy.distribution) not in (Categorical, Gaussian):
            outputs = None  # other distributions may need any number of outputs
        return play_episodes(policy, episodes, draws, outputs)


class _Step(NamedTuple):
    """One step of n running episodes, or the steps of all episodes."""

    place: Tensor  # [n] int64, indices into the B * G * T steps
    states: Tensor  # [n] before the step
    actions: Tensor  # [n] or [n, D]
    outputs: Tensor  # [n, outputs] of the network
    reached: Tensor  # [n] states after the step


def play_episodes(policy: NetworkPolicy, episodes: Episodes, draws: Tensor, expected: int | None = None) -> Rollouts:
    """Act until all episodes end or the draws in [0, 1), one per step and number of an action, are used up.

    Args:
        draws: ``[B, G, T]``, or ``[B, G, T, D]`` for continuous actions.
        expected: outputs of the network; missing ones would be actions that are never taken, or widths shared.
    """
    actor = policy.actor()
    distribution = policy.distribution
    observation_size = getattr(policy, "observation_size", None)  # of the shipped networks, for vectors alone
    horizon = draws.shape[2]
    steps: list[_Step] = []
    with torch.inference_mode():
        states = episodes.start.clone()
        rows = torch.arange(len(states), device=states.device) * horizon  # [M] place of each episode's first step
        memory = policy.memory(len(states))
        coming = draws.flatten(0, 1).transpose(0, 1).contiguous()  # [T, M, ...], read one step after the other
        for step in range(horizon):
            # 1. Now and then, ended episodes leave, so that their rows cost nothing.
            if step % CHECK_EVERY == 0:
                running = (~episodes.ended(states.clone())).nonzero().squeeze(-1)
                if len(running) < len(rows):
                    states = states[running]
                    rows = rows[running]
                    coming = coming[:, running]
                    memory = None if memory is None else memory[running]
                # A batch without prompts takes one step, because the rollout needs the shapes.
                if len(rows) == 0 and step:
                    break
            # 2. The policy acts.
            observations = floating(episodes.observe(states.clone()))
            _check_observations(observations, observation_size)
            if memory is None:
                outputs = actor(observations)
            else:
                outputs, memory = actor(observations, memory)
            _check_outputs(outputs, expected)
            actions = distribution.sample(outputs, coming[step])
            # 3. The world steps. Copies, because it may work in place, on its arguments or on what it returned.
            reached = episodes.step(states.clone(), distribution.applied(actions).clone()).clone()
            steps.append(_Step(rows + step, states, actions, outputs, reached))
            states = reached
    return _rollouts(steps, episodes, distribution, draws.shape[:3])


def _check_observations(observations: Tensor, size: int | None) -> None:
    if size is None:
        return
    got = tuple(observations.shape[1:])
    if got != (size,):
        raise UserError(
            f"Expected observations of shape {(size,)}, as policy.observation_size says, but got {got}, try a "
            "NetworkPolicy with a network for this shape, or an environment with flat observations."
        )


def _check_outputs(outputs: Tensor, expected: int | None) -> None:
    if expected is not None and outputs.shape[-1] != expected:
        raise UserError(f"Expected {expected} outputs of the policy's network, but got {outputs.shape[-1]}.")


def _rollouts(steps: list[_Step], episodes: Episodes, distribution: ActionDistribution, shape: torch.Size) -> Rollouts:
    """Rollouts of `shape` ``[B, G, T]``, without the steps after an episode's end."""
    taken = _Step(*(torch.cat(column) for column in zip(*steps, strict=True)))
    # Between two checks, ended episodes are stepped, too. These steps are dropped.
    real = (~episodes.ended(taken.states.clone())).nonzero().squeeze(-1)
    place, states, actions, outputs, reached = (column[real] for column in taken)
    log_probs = distribution.evaluate(outputs, actions).log_probs
    facts = episodes.report(states.clone(), distribution.applied(actions).clone(), reached)

    def by_step(values: Tensor) -> Tensor:
        """Values ``[n, ...]`` at their places ``[B, G, T, ...]``, 0 elsewhere."""
        full = values.new_zeros((shape.numel(), *values.shape[1:]))
        return full.index_copy_(0, place, values).view(*shape, *values.shape[1:])

    return Rollouts(
        actions=by_step(actions),
        mask=by_step(torch.ones_like(place, dtype=torch.bool)),
        inputs={"observations": by_step(episodes.observe(states.clone()))},
        log_probs=by_step(log_probs),
        info={name: by_step(values) for name, values in facts.items()},
    )


def _equal_bounds(world: tuple[float, ...] | None, policy: tuple[float, ...] | None) -> bool:
    """Equality of bounds up to the rounding of float32, in which environments state them."""
    if world is None or policy is None:
        return world is policy
    return all(math.isclose(bound, other, rel_tol=1e-6) for bound, other in zip(world, policy, strict=True))
