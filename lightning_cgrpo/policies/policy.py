"""Base class of policies, which know neither reward nor sampler."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.paths import expand_path
from lightning_cgrpo.core.rollout import Examples, Rollouts
from lightning_cgrpo.settings.objects import Stated


@dataclass(frozen=True)
class PolicyOutput:
    """Log-probabilities of the actions and entropies, both ``[N]`` or ``[N, T]``.

    Attributes:
        parameters: of the distributions, from which a policy of the same class computes its KL to them: a network's
            outputs, logits, or hidden states and the output layer's weight.
        kl: KL(policy || reference) over all actions, ``[N]`` or ``[N, T]``; None without a reference.
    """

    log_probs: Tensor
    entropy: Tensor
    parameters: tuple[Tensor, ...] = ()
    kl: Tensor | None = None


Reference = Callable[..., PolicyOutput]
"""A function of examples."""


@dataclass(frozen=True)
class Origin:
    """Source of starting weights."""

    name: str  # given by the user: a directory, a name on the hub, or packaged:NAME
    path: str  # of the directory on this machine
    fingerprint: str  # 12 hexadecimal digits, determined by the weights alone

    def __str__(self) -> str:
        names_its_path = self.name.startswith("packaged:") or str(expand_path(self.name).resolve()) == self.path
        where = "" if names_its_path else f" at {self.path}"
        return f"{self.name}{where}, fingerprint {self.fingerprint}"


class Policy(Stated, nn.Module, ABC):
    """A policy under training.

    Attributes:
        origin: source of the starting weights; None for random weights, and on all but the first process.
    """

    origin: Origin | None = None

    @property
    def shares_prompts(self) -> bool:
        """A pass computes a prompt once for all its answers."""
        return False

    @property
    def action_size(self) -> int | None:
        """Numbers of a continuous action; None for discrete actions."""
        return None

    @property
    def base(self) -> dict[str, Tensor]:
        """Frozen weights by name that `load` reads again, so that checkpoints leave them out; {} without adapters."""
        return {}

    def load(self) -> None:
        """Make or read the weights; a second call has no effect."""

    @abstractmethod
    def examples(self, rollouts: Rollouts) -> Examples:
        """The training units of a rollout: steps or answers."""

    @abstractmethod
    def forward(self, examples: Examples, reference: PolicyOutput | None = None) -> PolicyOutput:
        """Differentiable log-probabilities of `examples.actions`; entries outside the mask are finite.

        Args:
            reference: the reference's output for the same examples, for `PolicyOutput.kl`.
        """

    def layers(self) -> list[nn.Module]:
        """Parts that sharded training gathers one at a time, outer parts first."""
        return []

    def placeholder(self) -> Examples:
        """An arbitrary training unit for idle processes: sharded processes make equally many passes.

        Raises:
            UserError: the policy cannot be sharded.
        """
        raise UserError(
            f"Expected a policy with a placeholder for sharded training, but {type(self).__name__} has none, try "
            "strategy: ddp."
        )

    def reference(self) -> Reference:
        """A frozen copy for the KL term; with adapters, the same policy with its adapters off.

        Call after `load`, and before sharding.
        """
        return copy.deepcopy(self).requires_grad_(False).eval()
