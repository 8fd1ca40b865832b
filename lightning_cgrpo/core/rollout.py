"""Shared data structures: prompt groups, rollouts, signals and training examples.

Shape letters of the package, unless a docstring defines its own:

    B  prompts in the batch of one process      G  answers sampled per prompt (the group)
    T  steps of an answer (environment steps, or completion tokens), padded
    J  components of the advantage: the rewards, then the constraints
    K  constraints with a multiplier            N  training units (steps or whole answers)

Inside functions, names of tensors end in their shape: ``rewards_JBG`` is ``[J, B, G]``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, TypeVar

import torch
from torch import Tensor

from lightning_cgrpo.core.errors import UserError

NO_INPUTS: Mapping[str, Tensor] = MappingProxyType({})

_D = TypeVar("_D", bound="_Tensors")


def _map_tensors(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, dict):
        return {key: _map_tensors(item, function) for key, item in value.items()}
    return value


BLUR = 0.01
"""Largest rounding by float32, as a share of a group's range."""
RESIDUE = 1e-10
"""A range within a group below this share of the largest value is residue of float64."""
EXTRA = "extra/"
"""Start of the names in `Rollouts.info` of values to show beside the answers."""


@dataclass
class _Tensors:
    def mapped(self: _D, function: Callable[[Tensor], Tensor]) -> _D:
        """A copy with the function's result in place of every tensor."""
        values = {part.name: _map_tensors(getattr(self, part.name), function) for part in fields(self)}
        return replace(self, **values)

    def to(self: _D, device: torch.device | str) -> _D:
        return self.mapped(lambda tensor: tensor.to(device))


@dataclass
class PromptGroups(_Tensors):
    """Prompts to be answered G times each. Seed, update and `index` determine the randomness of the answers."""

    index: Tensor  # [B] int64, the prompts' indices in the data set, global over processes
    columns: dict[str, Any] = field(default_factory=dict)  # of the prompts: tensors [B, ...] or lists of length B
    sample: Tensor | None = None  # [B] int64, row of the prompt whose sample each belongs to; None: all are samples
    clusters: list[str] | None = None  # of length B; prompts of one cluster are one sample; None: not known

    def __len__(self) -> int:
        return len(self.index)

    def column(self, name: str, reader: str) -> Any:
        if name not in self.columns:
            names = ", ".join(self.columns) or "none"
            raise UserError(
                f"Expected prompts to have the column '{name}' for {reader}, but got {names}, try another data module, "
                "or rename the column of the data."
            )
        return self.columns[name]


@dataclass
class Rollouts(_Tensors):
    """G answers to each of B prompts.

    `log_probs` are the ratio's denominator; None if sampling was inexact, until the module computes them. An external
    engine's `sampling_log_probs` only serve as importance weights of steps.
    """

    actions: Tensor  # [B, G, T] int64, actions or tokens; [B, G, T, D] continuous actions, before squashing
    mask: Tensor  # [B, G, T] bool, true for the policy's own steps; see `read_steps`
    inputs: dict[str, Tensor]  # of the policy: observations [B, G, T, ...] or prompt tokens [B, ...]
    log_probs: Tensor | None = None  # [B, G, T]
    sampling_log_probs: Tensor | None = None  # [B, G, T]
    info: dict[str, Any] = field(default_factory=dict)  # facts for the task: [B, G, ...] or lists of B lists of G

    @property
    def lengths(self) -> Tensor:
        return self.mask.sum(-1)


def read_steps(mask: Tensor) -> Tensor:
    """Steps ``[..., T]`` up to the policy's last own step, given the own steps ``[..., T]``.

    Steps between own steps are the world's, such as the tokens of a tool's result: context that is never trained on.

    Example:
        >>> read_steps(torch.tensor([True, False, True, False]))
        tensor([ True,  True,  True, False])
    """
    return mask.flip(-1).cumsum(-1).flip(-1) > 0


def prompt_tokens(inputs: Mapping[str, Tensor]) -> list[list[int]]:
    """Tokens of B prompts without padding, from a policy's inputs ``prompt_ids`` and ``prompt_mask`` ``[B, P]``."""
    ids = inputs["prompt_ids"].cpu()
    mask = inputs["prompt_mask"].cpu().bool()
    return [prompt_ids[is_token].tolist() for prompt_ids, is_token in zip(ids, mask, strict=True)]


@dataclass
class Signal(_Tensors):
    """Measurement of one behavior in every answer, or in every step of the answers.

    Inapplicable entries enter no rate, group statistic or advantage. A rate pools the counts of all steps.
    """

    value: Tensor  # [B, G] or [B, G, T], for the advantage: an indicator, a number, or a sum of step penalties
    count: Tensor | None = None  # like `value` or [B, G], occurrences of the behavior; by default `value`, an indicator
    opportunities: Tensor | None = None  # like `value` or [B, G], opportunities for the behavior; by default 1
    applicable: Tensor | None = None  # [B, G] bool, by default true

    @classmethod
    def of(cls, values: Sequence[float | None], rollouts: Rollouts) -> Signal:
        """Values of B G answers in the order (b, g); None does not apply.

        They are float32, or float64 if float32 would blur the differences within a group, as of rewards of 1e7 ± 0.25;
        the values of other groups are those of float32 then, too.
        """
        shape = rollouts.mask.shape[:2]  # [B, G]
        device = rollouts.mask.device
        applicable = torch.tensor([value is not None for value in values], dtype=torch.bool, device="cpu").view(shape)
        exact = torch.tensor([value or 0.0 for value in values], dtype=torch.float64, device="cpu").view(shape)
        blurred_B = _blurred(exact, applicable)
        rounded = exact.float()
        if blurred_B.any():
            # Other groups keep the digits of float32, because digits of their rounding would tell their answers apart.
            rounded = torch.where(blurred_B[:, None], exact, rounded.double())
        return cls(rounded.to(device), applicable=applicable.to(device))

    @property
    def total(self) -> Tensor:
        """The value of whole answers, ``[B, G]``: summed over steps, 0 where inapplicable."""
        return over_steps(_zero_outside(self.applicable, self.value))

    @property
    def of_whole_answers(self) -> bool:
        """True if an answer is one opportunity at most: it has one value, and no opportunities of its own."""
        count = self.value if self.count is None else self.count
        return count.dim() == 2 and self.opportunities is None

    def counts(self) -> tuple[Tensor, Tensor]:
        """Occurrences and opportunities, 0 where inapplicable: ``[B, G, T]`` if both are by step, else ``[B, G]``."""
        count = self.value if self.count is None else self.count
        opportunities = torch.ones_like(count) if self.opportunities is None else self.opportunities
        count = _zero_outside(self.applicable, count)
        opportunities = _zero_outside(self.applicable, opportunities)
        if count.dim() == opportunities.dim():
            return count, opportunities
        return over_steps(count), over_steps(opportunities)

    def within(self, mask: Tensor) -> Signal:
        """The signal with 0 outside the policy's own steps `mask` ``[B, G, T]``.

        Opportunities by step are by default the steps of the mask.
        """
        count = self.value if self.count is None else self.count
        signal = self
        if count.dim() == 3 and self.opportunities is None:
            signal = replace(self, opportunities=mask.to(count.dtype))

        def zero_outside_mask(tensor: Tensor) -> Tensor:
            return tensor if tensor.dim() == 2 else torch.where(mask, tensor, 0)

        return signal.mapped(zero_outside_mask)

    def where(self, answers: Tensor) -> Signal:
        """The signal with 0 outside `answers` ``[B, G]``."""
        return self.mapped(lambda tensor: _zero_outside(answers, tensor))


def _blurred(exact: Tensor, applicable: Tensor) -> Tensor:
    """Groups ``[B]`` whose values ``[B, G]`` float32 rounds by more than `BLUR` of their range, residue apart."""
    rounded = exact.float().double()
    used = applicable & rounded.isfinite()  # an overflow of float32 remains a fault
    largest_rounding = torch.where(used, exact - rounded, 0).abs().amax(-1)
    group_range = torch.where(used, exact, -torch.inf).amax(-1) - torch.where(used, exact, torch.inf).amin(-1)
    largest_value = torch.where(used, exact, 0).abs().amax(-1)
    return (largest_rounding > BLUR * group_range) & (group_range > RESIDUE * largest_value)


def _zero_outside(answers: Tensor | None, values: Tensor) -> Tensor:
    """The values ``[B, G]`` or ``[B, G, T]`` of `answers` ``[B, G]``, otherwise 0; None is all answers."""
    if answers is None:
        return values
    if values.dim() == 3:
        answers = answers[..., None]
    return torch.where(answers, values, 0)


def over_steps(values: Tensor) -> Tensor:
    """Sums ``[B, G]`` of values ``[B, G]`` or ``[B, G, T]``."""
    if values.dim() == 2:
        return values
    return values.sum(-1)


Signals = Mapping[str, Signal]


@dataclass
class Examples(_Tensors):
    """Input of the loss: N training units, single steps (``[N]``) or whole answers (``[N, T]``).

    `Policy.examples` chooses the unit: answers where a policy reads its own earlier tokens, otherwise steps.
    """

    inputs: dict[str, Tensor]  # [N, ...], for the policy
    actions: Tensor  # [N] or [N, T]; continuous actions [N, D] or [N, T, D]
    mask: Tensor  # [N] or [N, T] bool; all true for steps
    group: Tensor  # [N] int64, the unit's prompt (row of B)
    shared: dict[str, Tensor] = field(default_factory=dict)  # [B, ...], of the prompts, indexed by `group`
    targets: dict[str, Tensor] = field(default_factory=dict)  # like `mask`, for the loss

    def __len__(self) -> int:
        return len(self.actions)

    def __getitem__(self, rows: Tensor | slice) -> Examples:
        """The units `rows`, with padding trimmed to the longest of them; `shared` stays whole."""
        mask = self.mask[rows]
        longest = 1
        if mask.dim() == 2 and len(mask):
            longest = max(int(read_steps(mask).sum(-1).max()), 1)

        def trim(tensor: Tensor) -> Tensor:
            return tensor[:, :longest] if mask.dim() == 2 else tensor

        return Examples(
            inputs={name: tensor[rows] for name, tensor in self.inputs.items()},
            actions=trim(self.actions[rows]),
            mask=trim(mask),
            group=self.group[rows],
            shared=self.shared,
            targets={name: trim(tensor[rows]) for name, tensor in self.targets.items()},
        )
