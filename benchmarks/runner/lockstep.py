"""Several runs in one process take their rollouts as one batched computation.

A rollout of a small policy is bound by the number of its operations, not by their size; several policies' operations at
once cost hardly more than one's. Everything else of a run (scores, advantages, loss, duals, logs, checkpoints) stays
its own.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lightning_cgrpo.policies.categorical_mlp import CategoricalMLP
from lightning_cgrpo.policies.policy import Actor
from lightning_cgrpo.rollout import PromptGroups, Rollouts
from lightning_cgrpo.samplers.environment import Environment, EnvironmentSampler, play
from lightning_cgrpo.samplers.sampler import Noise


@dataclass
class Request:
    """A rollout that a run waits for."""

    environment: Environment
    policy: CategoricalMLP
    prompts: PromptGroups
    group_size: int
    draws: Tensor
    answer: Rollouts | BaseException | None = None

    @property
    def kind(self) -> Hashable:
        """What requests must share to be played together: the environment's settings, and all shapes."""
        environment = (type(self.environment), *sorted((k, repr(v)) for k, v in vars(self.environment).items()))
        columns = tuple(column.shape for column in self.prompts.columns.values())
        shapes = tuple(parameter.shape for parameter in self.policy.parameters())
        return environment, columns, shapes, self.draws.shape, self.group_size


class Lockstep:
    """Where threads, each with a run of its own, wait for each other with their rollouts.

    Only one of them computes at a time; all others wait for their turn. When every thread waits for a rollout, the last
    one to come computes them all.

    Args:
        threads: how many there are going to be.
    """

    def __init__(self, threads: int) -> None:
        self._turn = threading.Condition()
        self._threads = threads
        self._requests: list[Request] = []

    @contextmanager
    def thread(self) -> Iterator[None]:
        """Everything that one of the threads does; each must come here once."""
        with self._turn:
            try:
                yield
            finally:
                self._threads -= 1
                self._answer_if_complete()

    def rollout(self, request: Request) -> Rollouts:
        """Wait until all threads have asked. To be called within `thread`."""
        self._requests.append(request)
        self._answer_if_complete()
        while request.answer is None:
            self._turn.wait()
        if isinstance(request.answer, BaseException):
            raise request.answer
        return request.answer

    def _answer_if_complete(self) -> None:
        if not self._requests or len(self._requests) < self._threads:
            return
        waiting, self._requests = self._requests, []
        batches: dict[Hashable, list[Request]] = {}
        for request in waiting:
            batches.setdefault(request.kind, []).append(request)
        for batch in batches.values():
            try:
                # Whoever computes may evaluate, and whoever gets it may train.
                with torch.inference_mode(False), torch.no_grad():
                    answers: Sequence[Rollouts | BaseException] = play_together(batch)
            except Exception as error:
                answers = [error] * len(batch)
            for request, answer in zip(batch, answers, strict=True):
                request.answer = answer
        self._turn.notify_all()


class LockstepSampler(EnvironmentSampler):
    """Takes rollouts together with those of other runs.

    Args:
        environment: what to act in. Runs with other settings are waited for as well, but played by themselves.
        lockstep: where to wait for the others.
    """

    def __init__(self, environment: Environment, lockstep: Lockstep) -> None:
        super().__init__(environment)
        self.lockstep = lockstep

    def rollout(self, policy: CategoricalMLP, prompts: PromptGroups, group_size: int, noise: Noise) -> Rollouts:  # type: ignore[override]
        draws = noise(group_size, self.environment.max_steps)
        return self.lockstep.rollout(Request(self.environment, policy, prompts, group_size, draws))


def play_together(requests: Sequence[Request]) -> list[Rollouts]:
    """The requests' rollouts, each as if it had been alone (but for the rounding of larger products)."""
    prompts = PromptGroups(
        torch.cat([request.prompts.index for request in requests]),
        {name: torch.cat([r.prompts.columns[name] for r in requests]) for name in requests[0].prompts.columns},
    )
    group_size = requests[0].group_size
    rollouts = play(
        stacked_actor([request.policy for request in requests]),
        requests[0].environment.reset(prompts, group_size),
        torch.cat([request.draws for request in requests]),
        blocks=len(requests),
    )
    size = len(requests[0].prompts)
    return [_part(rollouts, size, number) for number in range(len(requests))]


def stacked_actor(policies: Sequence[CategoricalMLP]) -> Actor:
    """Several policies of the same shape as one: its observations are equally many of each policy, in their order."""
    nets = [[layer for layer in policy.net if isinstance(layer, nn.Linear)] for policy in policies]
    layers = [
        (torch.stack([layer.weight for layer in same]).mT, torch.stack([layer.bias for layer in same])[:, None])
        for same in zip(*nets, strict=True)
    ]

    def act(observations: Tensor) -> Tensor:
        values = observations.view(len(policies), -1, observations.shape[-1])
        *hidden, last = layers
        for weight, bias in hidden:
            values = torch.baddbmm(bias, values, weight).relu_()
        return torch.baddbmm(last[1], values, last[0]).flatten(0, 1)

    return act


def _part(rollouts: Rollouts, size: int, number: int) -> Rollouts:
    return rollouts.mapped(lambda tensor: tensor[number * size : (number + 1) * size])
