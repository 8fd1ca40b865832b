"""What every controller of the multipliers has in common."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from lightning_cgrpo.errors import expect


def normalized(multipliers: Tensor) -> Tensor:
    """Weights ``[1 + K]`` (1, lambda) / (1 + sum lambda) from multipliers ``[K]`` >= 0, the reward's being 1.

    Example:
        >>> normalized(torch.tensor([1.0, 2.0]))
        tensor([0.2500, 0.2500, 0.5000])
    """
    unnormalized = torch.cat([multipliers.new_ones(1), multipliers])
    return unnormalized / unnormalized.sum()


class Controller(nn.Module, ABC):
    """Moves the weights of the reward and of K constraints so that each rate comes down to its threshold.

    A controller sees rates of violation and thresholds only, never the reward. Its whole state is in `state_dict`, as
    tensors and plain containers; hyperparameters are not state, so a resumed run may change them.

    To write one, implement `_allocate`, `_update` and `weights`.
    """

    size: int | None = None
    """Number of constraints K, None before `setup`."""

    def setup(self, size: int) -> None:
        """Allocate the state of K = `size` constraints. To be called once, before `load_state_dict`; again is harmless.

        Raises:
            ValueError: if there is state for another number of constraints.
        """
        if self.size is None:
            expect(size >= 0, "size", "a number of constraints", size)
            self._allocate(size)
            self.size = size
        elif self.size != size:
            raise ValueError(
                f"Expected a controller set up for {self.size} constraints to keep them, but got {size}, "
                "try a new controller."
            )

    def step(self, violations: Tensor, observed: Tensor) -> None:
        """Respond to the rates of one batch.

        Args:
            violations: ``[K]``, rate of violation - threshold.
            observed: ``[K]`` bool, False where the batch had no opportunity at all: the state of that constraint stays
                as it is, bit for bit, and its violation is not read.

        Raises:
            ValueError: if the violation of an observed constraint is not finite.
        """
        if self.size is None:
            raise RuntimeError("Expected `setup` before `step`, but got no number of constraints yet.")
        if violations.shape != (self.size,) or observed.shape != (self.size,):
            raise ValueError(
                f"Expected violations and observed of {self.size} constraints, but got shapes "
                f"{tuple(violations.shape)} and {tuple(observed.shape)}."
            )
        device = next(itertools.chain(self.parameters(), self.buffers())).device
        violations = violations.detach().to(device, torch.float64)
        observed = observed.to(device, torch.bool)
        if not bool(observed.any()):
            return
        violations = torch.where(observed, violations, 0.0)
        if not bool(violations.isfinite().all()):
            raise ValueError(
                f"Expected finite violations where observed, but got {violations.tolist()}, because a rate or a "
                "threshold is not a number, try to mark constraints without opportunities as not observed."
            )
        self._update(violations, observed)

    @property
    @abstractmethod
    def weights(self) -> Tensor:
        """``[1 + K]`` float64: the reward's weight, then the constraints', none negative, of sum 1."""

    @abstractmethod
    def _allocate(self, size: int) -> None:
        """Register float64 buffers (or parameters) for `size` constraints."""

    @abstractmethod
    def _update(self, violations: Tensor, observed: Tensor) -> None:
        """`step` with finite violations, 0 where not observed, and at least one constraint observed."""
