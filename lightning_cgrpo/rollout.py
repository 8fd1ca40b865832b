"""Shared data structures: prompt groups, rollouts, signals and training examples.

Shape letters of the package, unless a docstring defines its own:

    B  prompts in the batch of one process      G  answers sampled per prompt (the group)
    T  steps of an answer (environment steps, or completion tokens), padded
    J  components of the advantage: the rewards, then the constraints
    K  constraints with a multiplier            N  training units (steps or whole answers)
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

_D = TypeVar("_D", bound="_Tensors")


def _map_tensors(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, dict):
        return {key: _map_tensors(item, function) for key, item in value.items()}
    return value


@dataclass
class _Tensors:
    def mapped(self: _D, function: Callable[[Tensor], Tensor]) -> _D:
        return replace(self, **{f.name: _map_tensors(getattr(self, f.name), function) for f in fields(self)})

    def to(self: _D, device: torch.device | str) -> _D:
        return self.mapped(lambda tensor: tensor.to(device))


@dataclass
class PromptGroups(_Tensors):
    """Prompts to be answered G times each. Seed, update and `index` determine the randomness of the answers."""

    index: Tensor  # [B] int64, the prompts' indices in the data set, global over processes
    columns: dict[str, Any] = field(default_factory=dict)  # of the prompts: tensors [B, ...] or lists of length B

    def __len__(self) -> int:
        return len(self.index)

    def column(self, name: str, reader: str) -> Any:
        if name not in self.columns:
            known = ", ".join(self.columns) or "none"
            raise UserError(
                f"Expected prompts to have the column '{name}' for {reader}, but got {known}, try another data module, "
                "or rename the column of the data."
            )
        return self.columns[name]


@dataclass
class Rollouts(_Tensors):
    """G answers to each of B prompts.

    `log_probs` are the ratio's denominator; None if sampling was inexact, until the module computes them. An external
    engine's `sampling_log_probs` only serve as importance weights of steps.
    """

    actions: Tensor  # [B, G, T] int64, actions or tokens
    mask: Tensor  # [B, G, T] bool, true for an answer's steps, which come first
    inputs: dict[str, Tensor]  # of the policy: observations [B, G, T, ...] or prompt tokens [B, ...]
    log_probs: Tensor | None = None  # [B, G, T]
    sampling_log_probs: Tensor | None = None  # [B, G, T]
    info: dict[str, Any] = field(default_factory=dict)  # facts for the task: [B, G, ...] or lists of B lists of G

    @property
    def lengths(self) -> Tensor:
        return self.mask.sum(-1)


@dataclass
class Signal(_Tensors):
    """Measurement of one behavior in every answer.

    Inapplicable entries enter no rate, group statistic or advantage.
    """

    value: Tensor  # [B, G] or [B, G, T], for the advantage: an indicator, a number, or a sum of step penalties
    count: Tensor | None = None  # [B, G], occurrences of the behavior; by default `value`, an indicator
    opportunities: Tensor | None = None  # [B, G], opportunities for the behavior; by default 1
    applicable: Tensor | None = None  # [B, G] bool, by default true

    def counts(self) -> tuple[Tensor, Tensor]:
        """Occurrences and opportunities ``[B, G]``, both 0 where inapplicable."""
        count = self.value if self.count is None else self.count
        opportunities = torch.ones_like(count) if self.opportunities is None else self.opportunities
        if self.applicable is not None:
            count = torch.where(self.applicable, count, 0)
            opportunities = torch.where(self.applicable, opportunities, 0)
        return count, opportunities


Signals = Mapping[str, Signal]


@dataclass
class Examples(_Tensors):
    """Input of the loss: N training units, single steps (``[N]``) or whole answers (``[N, T]``).

    `Policy.examples` chooses the unit: answers where a policy reads its own earlier tokens, otherwise steps.
    """

    inputs: dict[str, Tensor]  # [N, ...], for the policy
    actions: Tensor  # [N] or [N, T]
    mask: Tensor  # bool like `actions`; all true for steps
    group: Tensor  # [N] int64, the unit's prompt (row of B)
    shared: dict[str, Tensor] = field(default_factory=dict)  # [B, ...], of the prompts, indexed by `group`
    targets: dict[str, Tensor] = field(default_factory=dict)  # like `actions`, for the loss

    def __len__(self) -> int:
        return len(self.actions)

    def __getitem__(self, rows: Tensor | slice) -> Examples:
        """The units `rows`, with padding trimmed to the longest of them; `shared` stays whole."""
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
