"""Group-relative advantages ``[B, G]`` of components ``[J, B, G]``, and effective weights.

Standard deviations are population standard deviations (1/G), as in the paper, except in `GDPO`. A component without
variance contributes exactly 0, as does an inapplicable entry.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from lightning_cgrpo.core.distributed import all_sum
from lightning_cgrpo.core.errors import expect
from lightning_cgrpo.core.rollout import Rollouts
from lightning_cgrpo.objective.group_statistics import GroupStatistics, divide_or_zero
from lightning_cgrpo.objective.units import RunningDeviation
from lightning_cgrpo.settings.objects import Stated

RELATIVE_ZERO = 1e-6
"""Standard deviations of a sum of components below this, relative to its terms, are residue."""
EPS = 1e-4
"""Added to the standard deviations of `GDPO`, as in its public code."""


class AdvantageEstimator(Stated, ABC):
    """Computes advantages from the statistics of groups, and weights."""

    @abstractmethod
    def __call__(self, rollouts: Rollouts, statistics: GroupStatistics, weights: Tensor) -> Tensor:
        """Advantages ``[B, G]``, or ``[B, G, T]`` of steps.

        Args:
            statistics: values ``[J, B, G]`` of the components and their moments within groups, from `group_statistics`;
                ``statistics.components`` also holds the values by step.
            weights: ``[J]`` of the components.
        """

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

    def load_running_state(self, state: dict[str, Tensor]) -> None:
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

    def __call__(self, rollouts: Rollouts | None, statistics: GroupStatistics, weights: Tensor) -> Tensor:
        if self.scale == "group":
            return weighted_sum(weights, statistics.standardized).to(statistics.dtype)
        if self._deviation is None or len(self._deviation.squares) != len(weights):  # of another objective
            self._deviation = RunningDeviation(len(weights))
        # Compare each answer with the group's other answers.
        excess_JBG, squares_J, answers_J = excess_over_others(statistics)
        # Scale by the running deviation, or by half of this update's own, whichever is larger.
        self._deviation.update(squares_J, answers_J)
        own_std_J = divide_or_zero(squares_J, answers_J).sqrt()
        self._std = torch.maximum(self._deviation.std, own_std_J / 2)
        standardized_JBG = divide_or_zero(excess_JBG, self._std[:, None, None])
        return weighted_sum(weights, standardized_JBG).to(statistics.dtype)

    def effective_weights(self, statistics: GroupStatistics, weights: Tensor) -> Tensor:
        weights_JB = weights[:, None].expand_as(statistics.std)
        if self.scale == "group":
            return weights_JB
        std_JB = statistics.std
        if self._std is not None:  # on the CPU, if it is a checkpoint's
            std_JB = self._std[:, None].to(std_JB.device).expand_as(std_JB)
        # The advantage sums w_j excess_j / sigma_j, where excess_j is the standardized component times this deviation.
        excess_std_JB = statistics.std * leave_one_out(statistics)
        return weights_JB * divide_or_zero(excess_std_JB, std_JB)

    def metrics(self, names: Sequence[str], weights: Tensor) -> dict[str, float]:
        """``price/<constraint>``: reward that the advantages give up for one violation, with one reward."""
        if self._std is None or names[0] != "reward":
            return {}
        reward_factor, *cost_factors = divide_or_zero(weights.to(self._std), self._std).tolist()
        if not reward_factor:
            return {}
        factors = zip(names[1:], cost_factors, strict=True)
        return {f"price/{name}": factor / reward_factor for name, factor in factors}

    def running_state(self) -> dict[str, Tensor]:
        if self._deviation is None:
            return {}
        return dict(self._deviation.state_dict())

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

    def __call__(self, rollouts: Rollouts, statistics: GroupStatistics, weights: Tensor) -> Tensor:
        sum_BG = weighted_sum(weights, statistics.deviation)
        std_B = self._std_of_sum(statistics, weights)
        return divide_or_zero(sum_BG, std_B[:, None]).to(statistics.dtype)

    def effective_weights(self, statistics: GroupStatistics, weights: Tensor) -> Tensor:
        return divide_or_zero(weights[:, None] * statistics.std, self._std_of_sum(statistics, weights))

    def _std_of_sum(self, statistics: GroupStatistics, weights: Tensor) -> Tensor:
        """``[B]``; collective for the batch."""
        if self.scale == "group":
            return _group_std_of_sum(statistics, weights)
        _, std = batch_moments(weighted_sum(weights, statistics.values), statistics.used)
        return std.expand(statistics.std.shape[1])


class LeaveOneOut(AdvantageEstimator):
    """RLOO (Kool et al., 2019; Ahmadian et al., 2024): each answer minus the mean of the group's other answers.

    A_i = sum_j w_j n / (n - 1) (X_j,i - mean), with n answers to which component j applies. The policy gradient is
    unbiased. Components are not standardized, as in a Lagrangian. Without n / (n - 1) this is the advantage of Dr. GRPO
    (Liu et al., 2025).
    """

    def __call__(self, rollouts: Rollouts, statistics: GroupStatistics, weights: Tensor) -> Tensor:
        excess_JBG = statistics.deviation * leave_one_out(statistics)[..., None]
        return weighted_sum(weights, excess_JBG).to(statistics.dtype)

    def effective_weights(self, statistics: GroupStatistics, weights: Tensor) -> Tensor:
        return weights[:, None] * statistics.std * leave_one_out(statistics)


class GDPO(AdvantageEstimator):
    """GDPO (Liu et al., 2026), a baseline: the sum of weighted standardized components, whitened over the batch.

    S_i = sum_j w_j (X_j - mean) / (std_j + EPS), A = (S - mean(S)) / (std(S) + EPS), with mean(S) and std(S) over all
    processes. As in the public code, standard deviations are sample standard deviations (1/(G-1)).
    """

    def __call__(self, rollouts: Rollouts, statistics: GroupStatistics, weights: Tensor) -> Tensor:
        sum_BG = self._standardized_sum(statistics, weights)
        mean, std = batch_moments(sum_BG, statistics.used)
        advantages_BG = torch.where(statistics.used, (sum_BG - mean) / (std + EPS), 0)
        return advantages_BG.to(statistics.dtype)

    def effective_weights(self, statistics: GroupStatistics, weights: Tensor) -> Tensor:
        """The batch's mean is left out, because it shifts all advantages alike."""
        _, std = batch_moments(self._standardized_sum(statistics, weights), statistics.used)
        return weights[:, None] * statistics.std / (sample_std(statistics) + EPS) / (std + EPS)

    def _standardized_sum(self, statistics: GroupStatistics, weights: Tensor) -> Tensor:
        """S ``[B, G]``."""
        std_JB1 = sample_std(statistics)[..., None]
        return weighted_sum(weights, statistics.deviation / (std_JB1 + EPS))


def excess_over_others(statistics: GroupStatistics) -> tuple[Tensor, Tensor, Tensor]:
    """Each value minus a baseline without it ``[J, B, G]``, and the moments of these excesses. Collective.

    The baseline of a value with n - 1 other applicable values in its group is their mean. In a group with inapplicable
    answers, the mean m of all processes' applicable values joins them as one more value:

        excess = (n (X - mean) + k (X - m)) / (n - 1 + k),    k = 1 with inapplicable answers, else 0

    With independent values of variance s^2, the excess has the variance s^2 (1 + (n - 1) / (n - 1 + k)^2). The moments
    are the sum ``[J]`` of squares over this factor, and the number ``[J]`` of answers, of all processes.
    """
    # The baseline's number of values: the other applicable answers, and m in a group with inapplicable answers.
    count_JB1 = statistics.count.double()[..., None]
    partly_JB1 = (statistics.count < statistics.used.shape[1])[..., None]
    others_JB1 = (count_JB1 - 1 + partly_JB1).clamp(min=1)
    # The excess is offset - slope m, whose square is offset^2 - 2 m offset slope + m^2 slope^2. The sums of these three
    # terms do not depend on m, so one message serves both m and the squares.
    slope_JBG = torch.where(partly_JB1 & statistics.applicable, 1 / others_JB1, 0)
    offset_JBG = count_JB1 * statistics.deviation / others_JB1 + slope_JBG * statistics.values
    factor_JB1 = 1 + (count_JB1 - 1).clamp(min=0) / others_JB1.square()
    terms_3JBG = torch.stack([offset_JBG.square(), offset_JBG * slope_JBG, slope_JBG.square()]) / factor_JB1
    # One collective sums everything over all processes.
    values_J = statistics.values.sum((1, 2))
    number_J = statistics.count.sum(1).double()
    answers_J = statistics.used.sum().double().expand(len(count_JB1))
    sums = all_sum(torch.stack([values_J, number_J, *terms_3JBG.sum((2, 3)), answers_J]))
    values_J, number_J, offset_squares_J, products_J, slope_squares_J, answers_J = sums
    # Put m in.
    mean_J = values_J / number_J.clamp(min=1)
    squares_J = (offset_squares_J - 2 * mean_J * products_J + mean_J.square() * slope_squares_J).clamp(min=0)
    excess_JBG = offset_JBG - slope_JBG * mean_J[:, None, None]
    return excess_JBG, squares_J, answers_J


def _safe_sqrt(variance: Tensor) -> Tensor:
    """Square root, with gradient 0 at 0."""
    positive = torch.where(variance > 0, variance, 1)
    return torch.where(variance > 0, positive.sqrt(), 0)


def weighted_sum(weights: Tensor, values: Tensor) -> Tensor:
    """Sum ``[B, G]`` of values ``[J, B, G]`` by weights ``[J]``."""
    return torch.einsum("j,jbg->bg", weights.to(values.dtype), values)


def _group_std_of_sum(statistics: GroupStatistics, weights: Tensor) -> Tensor:
    """``[B]`` standard deviation of sum_j w_j X_j in each group, 0 if constant up to rounding."""
    # Relative to sum_j |w_j| std_j, because squares of tiny weights underflow.
    sizes_J1 = weights.detach().abs()[:, None].to(statistics.std.dtype)
    scale_B = (sizes_J1 * statistics.std).sum(0)
    relative_BG = divide_or_zero(weighted_sum(weights, statistics.deviation), scale_B[:, None])
    variance_B = relative_BG.square().sum(-1) / statistics.used.sum(-1).clamp(min=1)
    # A relative variance this small is what rounding leaves of a constant sum.
    variance_B = torch.where(variance_B > RELATIVE_ZERO**2, variance_B, 0)
    return scale_B * _safe_sqrt(variance_B)


def leave_one_out(statistics: GroupStatistics) -> Tensor:
    """``[J, B]`` n / (n - 1), the excess over the other answers' mean by the deviation from the mean of all."""
    count = statistics.count.to(statistics.std.dtype)
    return count / (count - 1).clamp(min=1)


def sample_std(statistics: GroupStatistics) -> Tensor:
    """``[J, B]`` standard deviations with 1 / (n - 1)."""
    return statistics.std * leave_one_out(statistics).sqrt()


def batch_moments(values: Tensor, used: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and sample standard deviation of used entries on all processes, in two passes for precision."""
    # First pass: the mean. Not by indexing with `used`, which would wait for the device.
    selected = torch.where(used, values.double(), 0)
    total, count = all_sum(torch.stack([selected.sum(), used.sum().double()])).unbind()
    mean = total / count.clamp(min=1)
    # Second pass: squares of the deviations from the mean.
    deviation = torch.where(used, selected - mean, 0)
    squares = all_sum(deviation.square().sum())
    std = _safe_sqrt(squares / (count - 1).clamp(min=1))
    return mean.to(values.dtype), std.to(values.dtype)
