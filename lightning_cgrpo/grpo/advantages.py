"""Group-relative advantages ``[B, G]`` of components ``[J, B, G]``, and effective weights.

Standard deviations are population standard deviations (1/G), as in the paper, except in `GDPO`. A component without
variance contributes exactly 0, as does an inapplicable entry.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from lightning_cgrpo.core.distributed import all_sum
from lightning_cgrpo.core.errors import expect
from lightning_cgrpo.core.rollout import Rollouts
from lightning_cgrpo.objective.group_statistics import GroupStatistics, divide, group_statistics
from lightning_cgrpo.objective.objective import Components
from lightning_cgrpo.objective.units import RunningDeviation

RELATIVE_ZERO = 1e-6
"""Standard deviations of a sum of components below this, relative to its terms, are residue."""


class AdvantageEstimator(ABC):
    """Computes advantages from components and weights."""

    @abstractmethod
    def __call__(self, rollouts: Rollouts, components: Components, weights: Tensor) -> Tensor:
        """Advantages ``[B, G]`` or ``[B, G, T]`` from components ``[J, B, G]`` and weights ``[J]``."""

    @abstractmethod
    def effective_weights(self, statistics: GroupStatistics, weights: Tensor) -> Tensor:
        """``[J, B]``: factor of each standardized component in each group's advantage."""

    def trains_policy(self, update: int) -> bool:
        """False while a critic warms up: the policy and the multipliers stay."""
        return True

    def metrics(self, names: Sequence[str], weights: Tensor) -> dict[str, float]:
        """Metrics by tag, of the last update; none by default. Collective.

        Args:
            names: of the components.
            weights: ``[J]`` of the components.
        """
        return {}

    def running_state(self) -> dict[str, Tensor]:
        """The state that an estimator carries from update to update, for checkpoints."""
        return {}

    def load_running_state(self, state: dict[str, Tensor]) -> None:  # noqa: B027 (most estimators carry nothing)
        """Continue from `running_state`."""


class ScalarizedAdvantages(AdvantageEstimator):
    """The method: standardize each component, then combine.

    With ``scale: pooled``, A_i = sum_j w_j (X_j,i - baseline_j,i) / sigma_j with one running deviation sigma_j for each
    component. The policy gradient is that of sum_j w_j E[X_j] / sigma_j: all prompts have the price
    (w_k / sigma_k) / (w_R / sigma_R), and weights stay uncoupled. The baseline is the mean of the group's other
    answers, see `excess_over_others`. An update that deviates more than twice as much has half its own deviation as
    sigma_j, because one rare answer would otherwise outweigh the rest.

    With ``scale: group``, the paper's (eq. 5), A_i = sum_j w_j Z_j,i with Z_j = (X_j - mean) / std of the group, and
    X = -C for a cost C. A single component of weight 1 gives published GRPO. Prompts have different prices for the same
    behavior, because each group has a std of its own.

    Args:
        scale: ``pooled`` or ``group``.
    """

    def __init__(self, scale: Literal["pooled", "group"] = "pooled") -> None:
        expect(scale in ("pooled", "group"), "scale", "pooled or group", scale)
        self.scale = scale
        self._deviation: RunningDeviation | None = None
        self._std: Tensor | None = None
        """sigma ``[J]`` of the last update."""

    def __call__(self, rollouts: Rollouts | None, components: Components, weights: Tensor) -> Tensor:
        statistics = group_statistics(components)
        if self.scale == "group":
            return _weighted(weights, statistics.standardized).to(components.values.dtype)
        if self._deviation is None or len(self._deviation.squares) != len(weights):  # of another objective
            self._deviation = RunningDeviation(len(weights))
        excess, squares, answers = excess_over_others(statistics)
        self._deviation.update(squares, answers)
        self._std = torch.maximum(self._deviation.std, divide(squares, answers).sqrt() / 2)
        return _weighted(weights, divide(excess, self._std[:, None, None])).to(components.values.dtype)

    def effective_weights(self, statistics: GroupStatistics, weights: Tensor) -> Tensor:
        weights = weights[:, None].expand_as(statistics.std)
        if self.scale == "group":
            return weights
        # A checkpoint's deviation is on the CPU.
        std = statistics.std if self._std is None else self._std[:, None].to(statistics.std.device)
        return weights * divide(statistics.std * _leave_one_out(statistics), std)

    def metrics(self, names: Sequence[str], weights: Tensor) -> dict[str, float]:
        """``price/<constraint>``: reward that the advantages give up for one violation, with one reward."""
        if self._std is None or names[0] != "reward":
            return {}
        cost = divide(weights.to(self._std), self._std).tolist()
        return {f"price/{name}": value / cost[0] for name, value in zip(names[1:], cost[1:], strict=True) if cost[0]}

    def running_state(self) -> dict[str, Tensor]:
        return {} if self._deviation is None else dict(self._deviation.state_dict())

    def load_running_state(self, state: dict[str, Tensor]) -> None:
        if state and self.scale == "pooled":
            self._deviation = RunningDeviation(len(state["squares"]))
            self._deviation.load_state_dict(state)
            self._std = self._deviation.std


class ScalarizedRewards(AdvantageEstimator):
    """Baseline, the failure mode in the paper's analysis: combine, then standardize the sum.

    S_i = sum_j w_j X_j,i, A = (S - mean) / std. Then A = sum_j w~_j Z_j with
    w~_j = w_j std_j / std_S (effective-weight theorem).

    Args:
        scale: std_S of each ``group``, or one for the ``batch``: the sample standard deviation of S over all answers of
            all processes (Liu et al., 2025, "Part I: Tricks or Traps?").
    """

    def __init__(self, scale: Literal["group", "batch"] = "group") -> None:
        expect(scale in ("group", "batch"), "scale", "group or batch", scale)
        self.scale = scale

    def __call__(self, rollouts: Rollouts, components: Components, weights: Tensor) -> Tensor:
        statistics = group_statistics(components)
        advantages = divide(_weighted(weights, statistics.deviation), self._std(statistics, weights)[:, None])
        return advantages.to(components.values.dtype)

    def effective_weights(self, statistics: GroupStatistics, weights: Tensor) -> Tensor:
        return divide(weights[:, None] * statistics.std, self._std(statistics, weights))

    def _std(self, statistics: GroupStatistics, weights: Tensor) -> Tensor:
        """``[B]``; collective for the batch."""
        if self.scale == "group":
            return _std_of_sum(statistics, weights)
        _, std = batch_moments(_weighted(weights, statistics.values), statistics.used)
        return std.expand(statistics.std.shape[1])


class LeaveOneOut(AdvantageEstimator):
    """RLOO (Kool et al., 2019; Ahmadian et al., 2024): each answer minus the mean of the group's other answers.

    A_i = sum_j w_j n / (n - 1) (X_j,i - mean), with n answers to which component j applies. The policy gradient is
    unbiased. Components are not standardized, as in a Lagrangian. Without n / (n - 1) this is the advantage of Dr. GRPO
    (Liu et al., 2025).
    """

    def __call__(self, rollouts: Rollouts, components: Components, weights: Tensor) -> Tensor:
        statistics = group_statistics(components)
        advantages = _weighted(weights, statistics.deviation * _leave_one_out(statistics)[..., None])
        return advantages.to(components.values.dtype)

    def effective_weights(self, statistics: GroupStatistics, weights: Tensor) -> Tensor:
        return weights[:, None] * statistics.std * _leave_one_out(statistics)


class GDPO(AdvantageEstimator):
    """GDPO (Liu et al., 2026), a baseline: the sum of weighted standardized components, whitened over the batch.

    S_i = sum_j w_j (X_j - mean) / (std_j + eps), A = (S - mean(S)) / (std(S) + eps), with mean(S) and std(S) over all
    processes. As in the public code, standard deviations are sample standard deviations (1/(G-1)).
    """

    def __init__(self, eps: float = 1e-4) -> None:
        expect(0 < eps < math.inf, "eps", "positive", eps)
        self.eps = eps

    def __call__(self, rollouts: Rollouts, components: Components, weights: Tensor) -> Tensor:
        statistics = group_statistics(components)
        total = _weighted(weights, statistics.deviation / (_sample_std(statistics) + self.eps)[..., None])
        mean, std = batch_moments(total, statistics.used)
        advantages = torch.where(statistics.used, (total - mean) / (std + self.eps), 0)
        return advantages.to(components.values.dtype)

    def effective_weights(self, statistics: GroupStatistics, weights: Tensor) -> Tensor:
        """The batch's mean is left out, because it shifts all advantages alike."""
        sample = _sample_std(statistics)
        deviations = statistics.deviation / (sample + self.eps)[..., None]
        _, std = batch_moments(_weighted(weights, deviations), statistics.used)
        return weights[:, None] * statistics.std / (sample + self.eps) / (std + self.eps)


def excess_over_others(statistics: GroupStatistics) -> tuple[Tensor, Tensor, Tensor]:
    """Each value minus a baseline without it ``[J, B, G]``, and the moments of these excesses. Collective.

    The baseline of a value with n - 1 other applicable values in its group is their mean. In a group with inapplicable
    answers, the mean m of all processes' applicable values joins them as one more value:

        excess = (n (X - mean) + k (X - m)) / (n - 1 + k),    k = 1 with inapplicable answers, else 0

    With independent values of variance s^2, the excess has the variance s^2 (1 + (n - 1) / (n - 1 + k)^2). The moments
    are the sum ``[J]`` of squares over this factor, and the number ``[J]`` of answers, of all processes.
    """
    count = statistics.count.double()[..., None]  # [J, B, 1]
    partly = (statistics.count < statistics.used.shape[1])[..., None]
    others = (count - 1 + partly).clamp(min=1)
    # The excess is offset - slope m; its squares expand in m, so that one message serves both.
    slope = torch.where(partly & statistics.applicable, 1 / others, 0)
    offset = count * statistics.deviation / others + slope * statistics.values
    factor = 1 + (count - 1).clamp(min=0) / others.square()
    terms = torch.stack([offset.square(), offset * slope, slope.square()]) / factor
    answers = statistics.used.sum().double().expand(len(count))
    parts = [statistics.values.sum((1, 2)), statistics.count.sum(1).double(), *terms.sum((2, 3)), answers]
    total, number, square, mixed, linear, answers = all_sum(torch.stack(parts))
    mean = total / number.clamp(min=1)
    squares = (square - 2 * mean * mixed + mean.square() * linear).clamp(min=0)
    return offset - slope * mean[:, None, None], squares, answers


def _sqrt(variance: Tensor) -> Tensor:
    """Square root, with gradient 0 at 0."""
    return torch.where(variance > 0, torch.where(variance > 0, variance, 1).sqrt(), 0)


def _weighted(weights: Tensor, values: Tensor) -> Tensor:
    return torch.einsum("j,jbg->bg", weights.to(values.dtype), values)


def _std_of_sum(statistics: GroupStatistics, weights: Tensor) -> Tensor:
    """``[B]`` standard deviation of sum_j w_j X_j in each group, 0 if constant up to rounding."""
    # Relative to sum_j |w_j| std_j, because squares of tiny weights underflow.
    scale = (weights.detach().abs()[:, None].to(statistics.std.dtype) * statistics.std).sum(0)
    relative = divide(_weighted(weights, statistics.deviation), scale[:, None])
    variance = relative.square().sum(-1) / statistics.used.sum(-1).clamp(min=1)
    return scale * _sqrt(torch.where(variance > RELATIVE_ZERO**2, variance, 0))


def _leave_one_out(statistics: GroupStatistics) -> Tensor:
    count = statistics.count.to(statistics.std.dtype)
    return count / (count - 1).clamp(min=1)


def _sample_std(statistics: GroupStatistics) -> Tensor:
    return statistics.std * _leave_one_out(statistics).sqrt()


def batch_moments(values: Tensor, used: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and sample standard deviation of used entries on all processes, in two passes for precision."""
    # Not by indexing with `used`, which would wait for the device.
    selected = torch.where(used, values.double(), 0)
    total, count = all_sum(torch.stack([selected.sum(), used.sum().double()])).unbind()
    mean = total / count.clamp(min=1)
    squares = all_sum(torch.where(used, selected - mean, 0).square().sum())
    return mean.to(values.dtype), _sqrt(squares / (count - 1).clamp(min=1)).to(values.dtype)
