"""FirstSteps: did the first optimizer steps move every trained tensor?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from lightning_cgrpo.core.distributed import all_sum
from lightning_cgrpo.core.errors import UserError

STEPS = 2
"""Steps with a gradient that are looked at: A of LoRA has its first gradient in the second, because B is 0 before."""
PLACES = 1024
"""Numbers of a tensor that are compared, those with the largest gradients."""
LEAST = 0.5
"""Share of the compared numbers that must move."""
FULL = 0.5
"""Share of the learning rate from which steps are looked at."""
HALF = (torch.bfloat16, torch.float16)


def check_trained_dtypes(policy: nn.Module) -> None:
    """Refuse half-precision weights that are trained.

    bfloat16 keeps three digits, so that a step of 1e-6 moves only weights below 1e-3. Frozen weights under adapters
    may have half precision.

    Raises:
        UserError: a trained weight is bfloat16 or float16.
    """
    half = [(name, weight) for name, weight in policy.named_parameters() if weight.requires_grad]
    half = [(name, weight) for name, weight in half if weight.dtype in HALF]
    if half:
        name, weight = half[0]
        dtype = str(weight.dtype).removeprefix("torch.")
        raise UserError(
            f"Expected float32 weights to train, but got {len(half)} tensors in {dtype}, such as {name}, because "
            "rounding would swallow most steps, try policy.dtype: float32 (or model.float() before from_model) with "
            "precision: bf16-mixed, or lora, which trains adapters on a half-precision model."
        )


class _Before(NamedTuple):
    """The compared numbers before a step, by the tensor's name."""

    places: dict[str, Tensor]
    numbers: dict[str, Tensor]


class FirstSteps:
    """Looks at the first optimizer steps that have a gradient and a learning rate, and warns about tensors at rest.

    A tensor needs a gradient that is not 0 in one of these steps, and the step must move at least half of the numbers
    with the largest gradients. Later steps cost nothing.

    Args:
        policy: has the trained tensors.
    """

    def __init__(self, policy: nn.Module) -> None:
        self.policy = policy
        self.steps_left = STEPS
        self._without_gradient: set[str] | None = None
        self._at_rest: dict[str, float] = {}

    def before(self, optimizer: Optimizer) -> _Before | None:
        """Keep the numbers with the largest gradients; None if this step is not looked at. Collective."""
        if not self.steps_left or not any(_at_full_rate(group) for group in optimizer.param_groups if "lr" in group):
            return None
        trained = {name: weight for name, weight in self.policy.named_parameters() if weight.requires_grad}
        gradients = {name: _local(weight.grad) for name, weight in trained.items() if weight.grad is not None}
        if not gradients:  # no answer had an advantage, or a critic warms up
            return None
        counts = all_sum(torch.stack([gradient.count_nonzero() for gradient in gradients.values()])).tolist()
        with_gradient = {name for name, count in zip(gradients, counts, strict=True) if count}
        if not with_gradient:
            return None
        self.steps_left -= 1
        without = set(trained) - with_gradient
        self._without_gradient = without if self._without_gradient is None else self._without_gradient & without
        places = {name: _largest(gradients[name]) for name in trained if name in with_gradient}
        return _Before(places, {name: _numbers(trained[name], where) for name, where in places.items()})

    def after(self, before: _Before | None) -> None:
        """Compare with the numbers after the step; the last step that is looked at warns. Collective."""
        if before is None:
            return
        trained = dict(self.policy.named_parameters())
        moved = [
            torch.stack([(_numbers(trained[name], where) != before.numbers[name]).sum(), _count(where)])
            for name, where in before.places.items()
        ]
        for name, (changed, compared) in zip(before.places, all_sum(torch.stack(moved)).tolist(), strict=True):
            if compared and changed < LEAST * compared:
                self._at_rest[name] = changed / compared
            else:
                self._at_rest.pop(name, None)
        if not self.steps_left:
            self._tell(len([weight for weight in trained.values() if weight.requires_grad]))

    def _tell(self, count: int) -> None:
        if self._without_gradient:
            rank_zero_warn(
                f"{_some(sorted(self._without_gradient), count)} had no gradient in the first {STEPS} steps and will "
                "not learn, unless later prompts use them."
            )
        if self._at_rest:
            least = min(self._at_rest.values())
            rank_zero_warn(
                f"{_some(sorted(self._at_rest), count)} hardly moved: the first steps changed {least:.0%} of the "
                "numbers with the largest gradients, and rounding swallowed the other steps, try a larger learning "
                "rate."
            )


def _at_full_rate(group: dict[str, Any]) -> bool:
    """True once a schedule has reached half of the learning rate: the first steps of a warm-up may move nothing."""
    rate = float(group["lr"])
    return 0 < rate >= FULL * float(group.get("initial_lr", rate))


def _some(names: Sequence[str], count: int) -> str:
    return f"{len(names)} of {count} trained tensors, such as {names[0]},"


def _local(tensor: Tensor) -> Tensor:
    """This process's part of a tensor, flat."""
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach().flatten()


def _largest(gradient: Tensor) -> Tensor:
    """Places of the largest entries that are not 0."""
    values, places = gradient.abs().topk(min(PLACES, len(gradient)))
    return places[values > 0]


def _numbers(weight: Tensor, places: Tensor) -> Tensor:
    return _local(weight)[places]


def _count(places: Tensor) -> Tensor:
    return torch.full((), len(places), device=places.device)
