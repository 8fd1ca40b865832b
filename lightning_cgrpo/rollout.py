"""The data structures that everybody shares: prompt groups, rollouts, signals and training examples.

Shape letters used throughout the package:

    B  prompts in the batch of one process      G  answers sampled per prompt (the group)
    T  steps of an answer (environment steps, or completion tokens), padded
    J  components of the advantage: the rewards, then the constraints
    K  constraints                              N  training units (steps or whole answers)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, TypeVar

import torch
from torch import Tensor

from lightning_cgrpo.errors import UserError

NO_INPUTS: Mapping[str, Tensor] = MappingProxyType({})
"""Nothing besides a prompt's tokens."""

_D = TypeVar("_D", bound="PromptGroups | Rollouts | Signal | Examples")


def _map_tensors(value: Any, function: Any) -> Any:
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, dict):
        return {key: _map_tensors(item, function) for key, item in value.items()}
    return value


def mapped(data: _D, function: Callable[[Tensor], Tensor]) -> _D:
    """The same with a function applied to every tensor."""
    return replace(data, **{f.name: _map_tensors(getattr(data, f.name), function) for f in fields(data)})


def _to(data: _D, device: torch.device | str, non_blocking: bool = False) -> _D:
    return mapped(data, lambda tensor: tensor.to(device, non_blocking=non_blocking))


@dataclass
class PromptGroups:
    """A batch of prompts, each to be answered G times.

    Args:
        index: ``[B]`` int64, the prompt's index in its data set. It is global (the same on every process) and, with
            the seed and the update, determines the randomness of the prompt's rollout.
        columns: what the data set knows of the prompts: tensors ``[B, ...]`` or lists of length B.
    """

    index: Tensor
    columns: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.index)

    def column(self, name: str, reader: str) -> Any:
        """A column, for the part of the program that reads it.

        Raises:
            UserError: if the data set has no such column.
        """
        if name not in self.columns:
            known = ", ".join(self.columns) or "none"
            raise UserError(
                f"Expected prompts to have the column '{name}' for {reader}, but got {known}, try another data module, "
                "or rename the column of the data."
            )
        return self.columns[name]

    def to(self, device: torch.device | str, non_blocking: bool = False) -> PromptGroups:
        return _to(self, device, non_blocking)


@dataclass
class Rollouts:
    """G answers to each of B prompts.

    Args:
        actions: ``[B, G, T]`` int64, the actions or tokens taken.
        mask: ``[B, G, T]`` bool, which of them exist (an answer's first ones, up to its length).
        inputs: what the policy conditioned on: tensors ``[B, G, T, ...]`` (observations) or ``[B, ...]`` (prompt
            tokens), under names that policy and sampler agree on.
        log_probs: ``[B, G, T]`` log-probabilities under the policy that sampled, if the sampler's are exact enough
            to be the denominator of the ratio; otherwise None, and the module computes them.
        sampling_log_probs: ``[B, G, T]`` log-probabilities that another engine than the policy itself reports for what
            it sampled; too inexact for the ratio, they say how much an answer is to count.
        info: what happened besides, for the task to score: tensors ``[B, G, ...]``, or lists of B lists of G.
    """

    actions: Tensor
    mask: Tensor
    inputs: dict[str, Tensor]
    log_probs: Tensor | None = None
    sampling_log_probs: Tensor | None = None
    info: dict[str, Any] = field(default_factory=dict)

    @property
    def lengths(self) -> Tensor:
        """``[B, G]`` int64, steps of each answer."""
        return self.mask.sum(-1)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Rollouts:
        return _to(self, device, non_blocking)


@dataclass
class Signal:
    """What a task measured of one behavior, for every answer.

    Args:
        value: ``[B, G]`` (or ``[B, G, T]``), what the advantage is computed from: an indicator, a number, or a sum of
            per-step penalties.
        count: how often the behavior occurred, ``[B, G]``; by default `value`, which is then an indicator.
        opportunities: how often it could have, ``[B, G]``; by default 1.
        applicable: ``[B, G]`` bool, where the signal means anything; by default everywhere. An entry that does not
            apply enters no rate, no group statistic and no advantage.
    """

    value: Tensor
    count: Tensor | None = None
    opportunities: Tensor | None = None
    applicable: Tensor | None = None

    def counts(self) -> tuple[Tensor, Tensor]:
        """Occurrences and opportunities ``[B, G]``, both 0 where the signal does not apply."""
        count = self.value if self.count is None else self.count
        opportunities = torch.ones_like(count) if self.opportunities is None else self.opportunities
        if self.applicable is not None:
            count = torch.where(self.applicable, count, 0)
            opportunities = torch.where(self.applicable, opportunities, 0)
        return count, opportunities

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Signal:
        return _to(self, device, non_blocking)


Signals = Mapping[str, Signal]


@dataclass
class Examples:
    """Rollouts as the loss sees them: N units, each a single step (``[N]``) or a whole answer (``[N, T]``).

    A policy chooses its unit in `Policy.examples`: one that acts on each observation by itself trains on steps, one
    that reads its own earlier tokens trains on answers.

    Args:
        inputs: tensors ``[N, ...]`` for the policy.
        actions: ``[N]`` or ``[N, T]``.
        mask: like `actions`; for steps all True.
        group: ``[N]`` int64, the prompt (row of B) that the unit belongs to.
        shared: tensors ``[B, ...]`` that belong to prompts; look them up by `group`.
        targets: named tensors like `actions` that belong to the loss (advantages, old log-probabilities, weights).
    """

    inputs: dict[str, Tensor]
    actions: Tensor
    mask: Tensor
    group: Tensor
    shared: dict[str, Tensor] = field(default_factory=dict)
    targets: dict[str, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.actions)

    def __getitem__(self, rows: Tensor | slice) -> Examples:
        """The units `rows`, whose padding is trimmed to the longest of them."""
        mask = self.mask[rows]
        steps: tuple[slice, ...] = ()
        if mask.dim() == 2:
            steps = (slice(0, max(int(mask.sum(-1).max()), 1) if len(mask) else 1),)

        def take(tensor: Tensor) -> Tensor:
            return tensor[rows][(slice(None), *steps)]

        return Examples(
            inputs={name: tensor[rows] for name, tensor in self.inputs.items()},
            actions=take(self.actions),
            mask=mask[(slice(None), *steps)],
            group=self.group[rows],
            shared=self.shared,
            targets={name: take(tensor) for name, tensor in self.targets.items()},
        )

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Examples:
        return _to(self, device, non_blocking)
