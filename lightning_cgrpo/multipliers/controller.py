"""Base class of all controllers of the multipliers."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from lightning_cgrpo.core.errors import expect
from lightning_cgrpo.settings.objects import Stated


def normalized_weights(multipliers: Tensor) -> Tensor:
    """Weights ``[1 + K]`` (1, lambda) / (1 + sum lambda) from multipliers lambda ``[K]`` >= 0.

    Example:
        >>> normalized_weights(torch.tensor([1.0, 2.0]))
        tensor([0.2500, 0.2500, 0.5000])
    """
    unnormalized = torch.cat([multipliers.new_ones(1), multipliers])
    return unnormalized / unnormalized.sum()


class Controller(Stated, nn.Module, ABC):
    """Moves the weights of reward and K constraints, so that each rate falls to its threshold.

    A controller sees violations alone, never the reward. Hyperparameters are not in `state_dict`, so a resumed run may
    change them.
    """

    multipliers: Tensor
    """lambda ``[K]`` >= 0, unless a subclass overrides `weights`."""
    size: int | None = None
    standard_units = False
    """True if `step` wants violations in standard units by default."""
    max_multiplier: float = math.inf
    """Cap on each lambda_k, relative to the reward's 1."""
    margin: float = 0.0
    """Standard errors by which a rate's target lies inside its threshold.

    The error has two parts (`Targets.enforce`). That of the rate of all answers so far falls with the updates, so
    training begins with safety. That of the last validation remains, because a policy whose true rate is at the
    threshold fails half of its validations.
    """

    def setup(self, size: int) -> None:
        """Allocate the state of K = `size` constraints, before `load_state_dict`; a second call does nothing."""
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
            violations: ``[K]``, rate of violation - threshold, or this difference in standard units.
            observed: ``[K]`` bool, constraints with any opportunity; the state of other constraints stays.

        Raises:
            ValueError: the violation of an observed constraint is not finite.
        """
        if self.size is None:
            raise RuntimeError("Expected `setup` before `step`, but got no number of constraints yet.")
        if violations.shape != (self.size,) or observed.shape != (self.size,):
            raise ValueError(
                f"Expected violations and observed of {self.size} constraints, but got shapes "
                f"{tuple(violations.shape)} and {tuple(observed.shape)}."
            )
        # To the device of the state.
        device = next(itertools.chain(self.parameters(), self.buffers())).device
        violations = violations.detach().to(device, torch.float64)
        observed = observed.to(device, torch.bool)
        if not bool(observed.any()):
            return
        # A rate that was not observed is NaN.
        violations = torch.where(observed, violations, 0.0)
        if not bool(violations.isfinite().all()):
            raise ValueError(
                f"Expected finite violations where observed, but got {violations.tolist()}, because a rate or a "
                "threshold is not a number, try to mark constraints without opportunities as not observed."
            )
        self._update(violations, observed)

    @property
    def weights(self) -> Tensor:
        """``[1 + K]`` float64, >= 0, of sum 1: the reward's weight, then the constraints' weights.

        By default (1, lambda) / (1 + sum lambda), which keeps the advantage's scale (Stooke et al., 2020).
        """
        return normalized_weights(self.multipliers)

    @property
    def saturation(self) -> Tensor:
        """``[K]`` in [0, 1]: each lambda's share of its cap; without caps, the constraint's share of the weight."""
        if self.max_multiplier == math.inf:
            return self.weights[1:]
        return self.multipliers / self.caps

    @property
    def caps(self) -> Tensor:
        """``[K]``: caps of the multipliers now."""
        return torch.full_like(self.weights[1:], self.max_multiplier)

    def hold(self, k: int) -> bool:
        """Begin anew with a stalled, likely infeasible constraint, which is to be held at the rate that it reached.

        False, the default, if the controller goes on towards the threshold, as the paper's does.
        """
        return False

    def release(self, k: int) -> None:
        """Go on towards the threshold of a constraint that was held, and has met it."""

    @abstractmethod
    def _allocate(self, size: int) -> None:
        """Register float64 buffers (or parameters)."""

    @abstractmethod
    def _update(self, violations: Tensor, observed: Tensor) -> None:
        """`step` with finite violations, 0 where not observed, and at least one observed constraint."""
