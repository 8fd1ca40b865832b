"""Answers by acting in an environment, all episodes of a batch at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from lightning_cgrpo.errors import UserError
from lightning_cgrpo.rollout import PromptGroups, Rollouts
from lightning_cgrpo.samplers.sampler import Noise, Sampler

CHECK_EVERY = 4
"""Steps between looking for episodes that ended, to drop them: what a look costs, a few idle steps cost, too."""

Actor = Callable[[Tensor], Tensor]
"""Logits ``[M, actions]`` of observations ``[M, size]``."""


class Episodes(Protocol):
    """A vectorized environment as functions of its states, ``[M]`` integers, one for each episode.

    A state of one episode means nothing to another: it says where and in which episode's world.
    """

    start: Tensor
    """The states in which the M episodes begin."""

    def observe(self, states: Tensor) -> Tensor:
        """Observations ``[M, size]``."""

    def step(self, states: Tensor, actions: Tensor) -> Tensor:
        """The states that ``actions [M]`` lead to. From a state in which an episode has ended, the same state."""

    def ended(self, states: Tensor) -> Tensor:
        """Whether the episode is over, ``[M]`` bool."""

    def report(self, states: Tensor, actions: Tensor, reached: Tensor) -> dict[str, Tensor]:
        """What happened in M steps from `states` to `reached`, ``[M]`` each by name."""


class Environment(ABC):
    """Makes episodes of prompts.

    Attributes:
        max_steps: length of the longest episode.
        observation_size: numbers per observation, and
        actions: number of actions; None where a policy is not to be compared with them.
    """

    max_steps: int
    observation_size: int | None = None
    actions: int | None = None

    @abstractmethod
    def reset(self, prompts: PromptGroups, group_size: int) -> Episodes:
        """Start ``M = B * group_size`` episodes, the group of each prompt in consecutive rows."""


class ActingPolicy(Protocol):
    """What an environment sampler needs of a policy."""

    def actor(self) -> Actor:
        """The policy as it is now, as a plain function, since a module's calls would take as long as its sums."""


class EnvironmentSampler(Sampler):
    """Steps an environment with the policy until every episode ended or the environment's `max_steps` are over.

    Rollouts have ``inputs["observations"] [B, G, T, size]``, the log-probabilities under which actions were sampled,
    and in `info` what the environment reported, ``[B, G, T]`` by name, 0 after an episode's end.

    Args:
        environment: what to act in.
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
        # One random number per step, drawn up front.
        draws = noise(group_size, self.environment.max_steps).flatten(0, 1)
        return play(policy.actor(), episodes, draws).rollouts(len(prompts), group_size)


@dataclass
class Record:
    """What was seen and done: for every step the episodes' rows, states, actions, logits, and the states reached."""

    episodes: Episodes
    horizon: int
    steps: list[tuple[Tensor, Tensor, Tensor, Tensor, Tensor]] = field(default_factory=list)

    def rollouts(self, prompts: int, group_size: int) -> Rollouts:
        """All steps but those of episodes that were over, laid out as ``[B, G, T]``."""
        shape = (prompts, group_size, self.horizon)
        rows, states, actions, logits, reached = (torch.cat(column) for column in zip(*self.steps, strict=True))
        counts = torch.tensor([len(step[0]) for step in self.steps])
        step = torch.arange(len(counts)).repeat_interleave(counts).to(states.device)
        real = (~self.episodes.ended(states)).nonzero().squeeze(-1)
        place = (rows * self.horizon + step)[real]
        states, actions, reached = states[real], actions[real], reached[real]
        log_probs = logits[real].log_softmax(-1).gather(-1, actions[:, None]).squeeze(-1)

        def laid_out(values: Tensor) -> Tensor:
            full = values.new_zeros((prompts * group_size * self.horizon, *values.shape[1:]))
            return full.index_copy_(0, place, values).view(*shape, *values.shape[1:])

        happened = self.episodes.report(states, actions, reached)
        return Rollouts(
            actions=laid_out(actions),
            mask=laid_out(torch.ones_like(place, dtype=torch.bool)),
            inputs={"observations": laid_out(self.episodes.observe(states))},
            log_probs=laid_out(log_probs),
            info={name: laid_out(values) for name, values in happened.items()},
        )


def play(actor: Actor, episodes: Episodes, draws: Tensor, blocks: int = 1) -> Record:
    """Act until all episodes have ended or the draws are used up.

    Args:
        draws: ``[M, T]`` in [0, 1), the randomness of each step.
        blocks: keep the episodes in this many blocks of equal size, for an actor to whom they mean something.
    """
    record = Record(episodes, draws.shape[1])
    with torch.inference_mode():
        states = episodes.start
        rows = torch.arange(len(states), device=states.device)
        draws = draws.t().contiguous()  # Steps are read one after the other.
        for step in range(record.horizon):
            if step % CHECK_EVERY == 0:
                going_on = _going_on(episodes.ended(states), blocks)
                if going_on is not None:
                    states, rows, draws = states[going_on], rows[going_on], draws[:, going_on]
                if len(rows) == 0 and step:
                    break
            logits = actor(episodes.observe(states))
            # Inverse CDF; the last action takes what rounding leaves.
            below = logits.softmax(-1).cumsum(-1)[:, :-1] <= draws[step, :, None]
            actions = below.sum(-1)
            reached = episodes.step(states, actions)
            record.steps.append((rows, states, actions, logits, reached))
            states = reached
    return record


def _going_on(ended: Tensor, blocks: int) -> Tensor | None:
    """The rows to keep so that no block loses an episode that goes on and all keep equally many; None: all."""
    if not bool(ended.any()):
        return None
    ended = ended.view(blocks, -1)
    longest = int((~ended).sum(-1).max())
    first = torch.arange(blocks, device=ended.device)[:, None] * ended.shape[1]
    return (ended.byte().argsort(dim=-1, stable=True)[:, :longest] + first).flatten()
