"""Distributions of actions, as functions of a network's outputs."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from numpy.polynomial.hermite_e import hermegauss
from numpy.polynomial.legendre import leggauss
from torch import Tensor
from torch.nn.functional import softplus

from lightning_cgrpo.core.errors import UserError, expect
from lightning_cgrpo.policies.policy import PolicyOutput
from lightning_cgrpo.policies.token_log_probs import kl_divergence

LOG_STD = (-5.0, 2.0)
"""Limits of a Gaussian's logarithm of the standard deviation; beyond them, ratios overflow or all noise is lost."""
QUADRATURE = 32
"""Nodes of the integral over a Gaussian."""
TAIL = 20.0
"""Beyond it, log(1 + exp(-2 x)) is 0 in float64."""
SMALLEST_DRAW = 2.0**-54
"""Replaces a draw of 0, whose Gaussian quantile is infinite."""


class ActionDistribution(ABC):
    """Distribution over the actions of a step, given the network's outputs ``[N, outputs]``.

    Attributes:
        action_size: numbers of a continuous action (D); None for discrete actions.
    """

    action_size: int | None = None

    @abstractmethod
    def sample(self, outputs: Tensor, draws: Tensor) -> Tensor:
        """Actions of uniform draws in [0, 1), ``[N]`` for discrete and ``[N, D]`` for continuous actions."""

    @abstractmethod
    def evaluate(self, outputs: Tensor, actions: Tensor) -> PolicyOutput:
        """Log-probabilities (or log-densities) of actions and entropies, ``[...]``, from outputs ``[..., outputs]``."""

    def kl(self, outputs: Tensor, reference: Tensor) -> Tensor:
        """KL to the distributions of a reference's outputs, ``[...]``, from two tensors ``[..., outputs]``.

        Raises:
            UserError: the class defines no KL.
        """
        raise UserError(
            f"Expected a distribution with a method kl for the exact KL, but {type(self).__name__} has none, try "
            "exact_kl: false, and no constraint on kl."
        )

    def applied(self, actions: Tensor) -> Tensor:
        """The actions that the environment gets."""
        return actions


class Categorical(ActionDistribution):
    """Discrete actions; the outputs are logits, -inf for masked actions."""

    def sample(self, outputs: Tensor, draws: Tensor) -> Tensor:
        # Inverse cumulative distribution; the last action that has a share takes the rest that rounding leaves.
        sums = outputs.softmax(-1).cumsum(-1)
        before = sums[..., :-1]
        total = sums[..., -1:]
        return ((before <= draws[..., None]) & (before < total)).sum(-1)

    def evaluate(self, outputs: Tensor, actions: Tensor) -> PolicyOutput:
        log_probs = outputs.log_softmax(-1)
        taken = log_probs.gather(-1, actions[..., None]).sum(-1)  # FSDP would warn about a view
        finite = log_probs.clamp(min=torch.finfo(log_probs.dtype).min)  # 0 times -inf would be NaN
        return PolicyOutput(taken, -(log_probs.exp() * finite).sum(-1))

    def kl(self, outputs: Tensor, reference: Tensor) -> Tensor:
        return kl_divergence(outputs, reference)


class Gaussian(ActionDistribution):
    """Independent Gaussians, squashed by tanh into the bounds if there are any.

    The outputs are D means and D logarithms of standard deviations, limited to `LOG_STD`. Rollouts keep actions before
    squashing, because the inverse of tanh loses all digits near the bounds. Log-probabilities are densities of the
    squashed actions (Haarnoja et al., 2018, appendix C).

    Args:
        action_size: numbers of an action (D).
        low: lower bounds, one for all numbers or one for each; None for unbounded actions.
        high: upper bounds.
    """

    def __init__(
        self,
        action_size: int,
        low: float | tuple[float, ...] | None = None,
        high: float | tuple[float, ...] | None = None,
    ) -> None:
        expect(action_size >= 1, "action_size", "at least 1", action_size)
        expect((low is None) == (high is None), "high", "given exactly if `low` is given", high)
        self.action_size: int = action_size
        self.low = None if low is None else _per_number(low, action_size)
        self.high = None if high is None else _per_number(high, action_size)
        if self.low is not None and self.high is not None:
            for below, above in zip(self.low, self.high, strict=True):
                expect(below < above, "low", f"less than `high`, {self.high}", self.low)

    def sample(self, outputs: Tensor, draws: Tensor) -> Tensor:
        mean, log_std = self._mean_and_log_std(outputs)
        noise: Tensor = torch.special.ndtri(draws.double().clamp(min=SMALLEST_DRAW))
        return mean + log_std.exp() * noise.to(mean.dtype)

    def evaluate(self, outputs: Tensor, actions: Tensor) -> PolicyOutput:
        """Entropies of squashed actions are computed by quadrature: Gauss-Hermite up to a standard deviation of 1."""
        mean, log_std = self._mean_and_log_std(outputs)
        squares = ((actions - mean) * (-log_std).exp()).square()
        densities = -0.5 * squares - log_std - 0.5 * math.log(2 * math.pi)
        entropies = log_std + 0.5 * math.log(2 * math.pi * math.e)
        if self.low is not None:
            densities = densities - self._log_slope(actions)
            nodes, weights = (torch.from_numpy(numbers).to(mean) for numbers in hermegauss(QUADRATURE))
            points = mean[..., None, :] + log_std.exp()[..., None, :] * nodes[:, None]
            slopes = (self._log_slope(points) * weights[:, None]).sum(-2) / math.sqrt(2 * math.pi)
            entropies = entropies + torch.where(log_std > 0, self._wide_log_slope(mean, log_std.exp()), slopes)
        return PolicyOutput(densities.sum(-1), entropies.sum(-1))

    def kl(self, outputs: Tensor, reference: Tensor) -> Tensor:
        """The closed form; squashing both distributions keeps it."""
        mean, log_std = self._mean_and_log_std(outputs)
        reference_mean, reference_log_std = self._mean_and_log_std(reference)
        ratio = log_std - reference_log_std
        distance = (mean - reference_mean) * (-reference_log_std).exp()
        return (((2 * ratio).exp() + distance.square() - 1) / 2 - ratio).sum(-1)

    def applied(self, actions: Tensor) -> Tensor:
        if self.low is None:
            return actions
        low = actions.new_tensor(self.low)
        high = actions.new_tensor(self.high)
        squashed = low + (high - low) * (actions.tanh() + 1) / 2
        return torch.clamp(squashed, low, high)  # rounding may cross a bound

    def _mean_and_log_std(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = outputs.chunk(2, -1)
        return mean, log_std.clamp(*LOG_STD)

    def _log_slope(self, actions: Tensor) -> Tensor:
        """Logarithm of the squashing's derivative, by number."""
        if self.low is None or self.high is None:
            return torch.zeros_like(actions)
        half_widths = [(high - low) / 2 for low, high in zip(self.low, self.high, strict=True)]
        return 2 * (math.log(2) - actions - softplus(-2 * actions)) + actions.new_tensor(half_widths).log()

    def _wide_log_slope(self, mean: Tensor, std: Tensor) -> Tensor:
        """Mean of `_log_slope` under a Gaussian wider than 1, within 1e-9.

        The slope's logarithm is 2 log 2 - 2 |x| - 2 log(1 + exp(-2 |x|)) plus a constant. Its kink at 0 is narrow
        beside the nodes of a wide Gaussian, so E |x| is taken in closed form, and the last term, which vanishes beyond
        `TAIL`, is integrated over x on both sides of 0.
        """
        # The last term at nodes from 0 to `TAIL`, times the density of x and of -x there.
        nodes, weights = (torch.from_numpy(numbers).to(mean) for numbers in leggauss(QUADRATURE))
        points = TAIL / 2 * (nodes + 1)
        weights = TAIL / 2 * weights
        rest = -2 * torch.log1p((-2 * points).exp()) * weights  # [QUADRATURE]
        left = ((-points - mean[..., None]) / std[..., None]).square()  # [..., D, QUADRATURE]
        right = ((points - mean[..., None]) / std[..., None]).square()
        density = ((-0.5 * left).exp() + (-0.5 * right).exp()) / (std[..., None] * math.sqrt(2 * math.pi))
        # E |x| in closed form (folded normal distribution).
        distance = mean / std
        absolute = std * math.sqrt(2 / math.pi) * (-0.5 * distance.square()).exp()
        absolute = absolute + mean * torch.erf(distance / math.sqrt(2))
        # The slope's logarithm at 0 holds the constant.
        return self._log_slope(torch.zeros_like(mean)) + 2 * math.log(2) - 2 * absolute + (rest * density).sum(-1)


def _per_number(bound: float | tuple[float, ...], size: int) -> tuple[float, ...]:
    numbers = (bound,) * size if isinstance(bound, (int, float)) else bound
    bounds = tuple(float(number) for number in numbers)
    expect(len(bounds) == size, "low and high", f"one number, or {size}", bounds)
    return bounds
