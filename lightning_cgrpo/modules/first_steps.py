"""FirstSteps: did the first optimizer steps move every trained tensor?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

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
    trained = [(name, weight) for name, weight in policy.named_parameters() if weight.requires_grad]
    half = [(name, weight) for name, weight in trained if weight.dtype in HALF]
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
        if not self.steps_left or not _has_full_rate(optimizer):
            return None

        # Which tensors have a gradient that is not 0 on any process?
        trained = {name: weight for name, weight in self.policy.named_parameters() if weight.requires_grad}
        gradients = {name: _flat_local(weight.grad) for name, weight in trained.items() if weight.grad is not None}
        if not gradients:  # no answer had an advantage, or a critic warms up
            return None
        nonzero = torch.stack([gradient.count_nonzero() for gradient in gradients.values()])
        counts = all_sum(nonzero).tolist()
        with_gradient = {name for name, count in zip(gradients, counts, strict=True) if count}
        if not with_gradient:
            return None
        self.steps_left -= 1

        # A tensor learns nothing only if it had no gradient in all of these steps.
        without_gradient = set(trained) - with_gradient
        if self._without_gradient is not None:
            without_gradient &= self._without_gradient
        self._without_gradient = without_gradient

        # Keep the numbers with the largest gradients, which the step should move most.
        places = {name: _largest_places(gradients[name]) for name in trained if name in with_gradient}
        numbers = {name: _numbers_at(trained[name], tensor_places) for name, tensor_places in places.items()}
        return _Before(places, numbers)

    def after(self, before: _Before | None) -> None:
        """Compare with the numbers after the step; the last step that is looked at warns. Collective."""
        if before is None:
            return
        # Count changed and compared numbers of each tensor, over all processes.
        weights = dict(self.policy.named_parameters())
        counts = []
        for name, places in before.places.items():
            changed = (_numbers_at(weights[name], places) != before.numbers[name]).sum()
            compared = torch.full((), len(places), device=places.device)
            counts.append(torch.stack([changed, compared]))
        total_counts = all_sum(torch.stack(counts)).tolist()  # [tensors, 2]

        for name, (changed, compared) in zip(before.places, total_counts, strict=True):
            if compared and changed < LEAST * compared:
                self._at_rest[name] = changed / compared
            else:
                self._at_rest.pop(name, None)
        if not self.steps_left:
            self._warn(len([weight for weight in weights.values() if weight.requires_grad]))

    def _warn(self, trained: int) -> None:
        """Warn about tensors without a gradient and tensors at rest, of `trained` tensors."""
        if self._without_gradient:
            tensors = _tensors_in_words(sorted(self._without_gradient), trained)
            rank_zero_warn(
                f"{tensors} had no gradient in the first {STEPS} steps and will not learn, unless later prompts use "
                "them."
            )
        if self._at_rest:
            tensors = _tensors_in_words(sorted(self._at_rest), trained)
            least = min(self._at_rest.values())
            rank_zero_warn(
                f"{tensors} hardly moved: the first steps changed {least:.0%} of the numbers with the largest "
                "gradients, and rounding swallowed the other steps, try a larger learning rate."
            )


def _has_full_rate(optimizer: Optimizer) -> bool:
    """True once a schedule has reached half of the learning rate: the first steps of a warm-up may move nothing."""
    for group in optimizer.param_groups:
        if "lr" not in group:
            continue
        rate = float(group["lr"])
        full_rate = float(group.get("initial_lr", rate))
        if 0 < rate >= FULL * full_rate:
            return True
    return False


def _tensors_in_words(names: Sequence[str], trained: int) -> str:
    return f"{len(names)} of {trained} trained tensors, such as {names[0]},"


def _flat_local(tensor: Tensor) -> Tensor:
    """This process's part of a tensor, flat."""
    if isinstance(tensor, DTensor):
        tensor = tensor.to_local()
    return tensor.detach().flatten()


def _largest_places(gradient: Tensor) -> Tensor:
    """Places of the largest entries that are not 0."""
    values, places = gradient.abs().topk(min(PLACES, len(gradient)))
    return places[values > 0]


def _numbers_at(weight: Tensor, places: Tensor) -> Tensor:
    return _flat_local(weight)[places]
