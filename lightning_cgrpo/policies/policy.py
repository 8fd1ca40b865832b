"""Policies: distributions over actions and log-probabilities of actions taken; they know neither reward nor sampler."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from lightning_cgrpo.errors import UserError
from lightning_cgrpo.policies.origin import Origin
from lightning_cgrpo.rollout import Examples, Rollouts


@dataclass(frozen=True)
class PolicyOutput:
    """Log-probabilities of the actions taken and entropies of the distributions, both ``[N]`` or ``[N, T]``."""

    log_probs: Tensor
    entropy: Tensor


Reference = Callable[[Examples], PolicyOutput]
"""A policy that does not move; give it the same examples."""

Actor = Callable[[Tensor], Tensor]
"""Logits ``[M, actions]`` of observations ``[M, size]``."""


class Policy(nn.Module, ABC):
    """A policy under training.

    Attributes:
        origin: where the starting weights were read from; None for random weights, and on processes but the first.
    """

    origin: Origin | None = None

    def load(self) -> None:
        """Make the weights, or read them; harmless when called again.

        Called before training in the process that will use them, so a wrong objective is reported before gigabytes are
        read.
        """

    @abstractmethod
    def examples(self, rollouts: Rollouts) -> Examples:
        """The training units of a rollout: its steps or its answers, without the padding where that is possible."""

    @abstractmethod
    def forward(self, examples: Examples) -> PolicyOutput:
        """Log-probabilities of `examples.actions`, differentiable. Entries outside the mask may be anything finite."""

    def layers(self) -> list[nn.Module]:
        """The parts that are gathered one at a time where the weights are spread over processes; outer ones first."""
        return []

    def placeholder(self) -> Examples:
        """A unit of any content, for the passes of a process that has none while the others need it for theirs.

        Only asked for where the weights are spread over processes.

        Raises:
            UserError: this policy can't be spread so.
        """
        raise UserError(
            f"Expected a policy with a placeholder for sharded training, but {type(self).__name__} has none, try "
            "strategy: ddp."
        )

    def reference(self) -> Reference:
        """This policy as it is now, frozen: what the KL term measures the distance from.

        A copy, with parameters of its own. A policy whose initial weights are still inside it (an adapter that can be
        switched off) returns a view of itself instead, which is no `nn.Module`, so that assigning it to one registers
        no parameter twice. Call after `load`, and before the parameters are sharded over processes.
        """
        return copy.deepcopy(self).requires_grad_(False).eval()

    def __call__(self, *args: Any, **kwargs: Any) -> PolicyOutput:
        output: PolicyOutput = super().__call__(*args, **kwargs)
        return output
