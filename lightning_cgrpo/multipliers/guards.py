"""Guards against infeasible constraints: bounds on the weights, slack, and a detector.

Bounds reserve weight for each component; slack loosens the threshold; the detector warns.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from lightning_cgrpo.errors import UserError, did_you_mean, expect

ROUNDING = 1e-9
"""Tolerance of sums of bounds, so that ten floors of 0.1 are feasible."""


def bounded(weights: Tensor, floor: Tensor, cap: Tensor) -> Tensor:
    """The closest weights in KL divergence within floor <= x <= cap, sum x = 1.

    argmin KL(x || weights) is x_j = clip(c weights_j, floor_j, cap_j) with c for the sum 1. Each turn fixes the
    side (floors or caps) with the larger total violation (Bitran & Hax, 1981). If all positive weights are at their
    caps, weights of 0 share the rest. Feasible weights stay, bit for bit.

    Args:
        weights: ``[1 + K]``, >= 0, of sum 1.
        floor: ``[1 + K]``, of sum <= 1.
        cap: ``[1 + K]``, of sum >= 1.

    Example:
        >>> floor, cap = torch.tensor([0.1, 0.1, 0.0]), torch.ones(3)
        >>> bounded(torch.tensor([0.00, 0.25, 0.75]), floor, cap)
        tensor([0.1000, 0.2250, 0.6750])
    """
    _check_feasible(floor, cap)
    floor, cap = floor.to(weights), cap.to(weights)
    if bool(((floor <= weights) & (weights <= cap)).all()):
        return weights
    result = weights.clone()
    free = torch.ones_like(weights, dtype=torch.bool)
    while bool(free.any()):
        mass = (1 - result[~free].sum()).clamp(min=0)
        shares = torch.where(free, weights, 0)
        if not bool(shares.any()):
            shares = free.to(weights)
        scaled = shares * (mass / shares.sum())
        missing = torch.where(free, floor - scaled, 0).clamp(min=0)
        excess = torch.where(free, scaled - cap, 0).clamp(min=0)
        met, bound = (missing > 0, floor) if bool(missing.sum() >= excess.sum()) else (excess > 0, cap)
        if not bool(met.any()):
            return torch.where(free, scaled, result)
        result = torch.where(met, bound, result)
        free = free & ~met
    return result


def rounded_up(rate: float) -> float:
    """A rate rounded up to two digits: a threshold slightly looser than the rate.

    Example:
        >>> rounded_up(0.391), rounded_up(0.0123)
        (0.4, 0.013)
    """
    if rate <= 0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(rate)) - 1)
    return min(round(math.ceil(rate / unit - ROUNDING) * unit, 12), 1.0)


class WeightBounds:
    """Floors and caps on the policy's weights.

    A controller without bounds of its own, `SoftmaxAdam`, continues from the bounded weights (`Controller.adopt`), so a
    weight soon leaves its bound.

    Args:
        floor: smallest weight, of all components or by name.
        cap: largest weight, of all components or by name.

    Example:
        >>> bounds = WeightBounds(floor={"reward": 0.2})
        >>> bounds.resolve(["reward", "lava"])
        >>> bounds(torch.tensor([0.1, 0.9]))
        tensor([0.2000, 0.8000])
    """

    def __init__(self, floor: float | dict[str, float] = 0.0, cap: float | dict[str, float] = 1.0) -> None:
        for argument, bound in (("floor", floor), ("cap", cap)):
            for value in bound.values() if isinstance(bound, dict) else [bound]:
                expect(0 <= value <= 1, argument, "in [0, 1], a share of the weight", value)
        self.floor, self.cap = floor, cap
        self._bounds: tuple[Tensor, Tensor] | None = None

    def resolve(self, names: list[str]) -> None:
        floor, cap = self._vector("floor", self.floor, 0.0, names), self._vector("cap", self.cap, 1.0, names)
        _check_feasible(floor, cap, names)
        self._bounds = floor, cap

    def __call__(self, weights: Tensor) -> Tensor:
        if self._bounds is None:
            raise RuntimeError("Expected `resolve` before the first use of WeightBounds, but got no names yet.")
        return bounded(weights, *self._bounds)

    def highest_weights(self) -> Tensor:
        """``[K]``: the greatest weight of each constraint that floors and caps allow."""
        assert self._bounds is not None
        floor, cap = self._bounds
        return torch.minimum(cap, 1 - floor.sum() + floor)[1:]

    @staticmethod
    def _vector(argument: str, bound: float | dict[str, float], default: float, names: list[str]) -> Tensor:
        if not isinstance(bound, dict):
            return torch.full((len(names),), bound, dtype=torch.float64)
        for name in bound:
            if name not in names:
                hint = did_you_mean(name, names)
                raise UserError(
                    f"Expected argument `{argument}` to name weights among {names}, but got '{name}'.{hint}"
                )
        return torch.tensor([bound.get(name, default) for name in names], dtype=torch.float64)


def _check_feasible(floor: Tensor, cap: Tensor, names: list[str] | None = None) -> None:
    crossed = (floor > cap).nonzero().flatten().tolist()
    if crossed:
        j = crossed[0]
        raise UserError(
            f"Expected floors below caps, but got floor {floor[j]:g} and cap {cap[j]:g} for "
            f"{f'weight {j}' if names is None else repr(names[j])}."
        )
    if floor.sum() > 1 + ROUNDING:
        raise UserError(
            f"Expected the floors of all {len(floor)} weights to sum to 1 at most, but got {floor.sum():g}, "
            "because weights sum to 1, try lower floors."
        )
    if cap.sum() < 1 - ROUNDING:
        raise UserError(
            f"Expected the caps of all {len(cap)} weights to sum to 1 at least, but got {cap.sum():g}, "
            "because weights sum to 1, try higher caps."
        )


class ResilientSlack:
    """Loosens each threshold in proportion to its weight: v_k <- v_k - lambda_k / alpha (Hounie et al., 2023).

    In equilibrium an infeasible constraint has the weight alpha (rate - threshold). Feasible constraints settle
    lambda_k / alpha above their thresholds.

    Args:
        alpha: stiffness, below 1 / (worst expected rate - threshold); slack is at most 1 / alpha.
    """

    def __init__(self, alpha: float = 2.0) -> None:
        expect(0 < alpha < math.inf, "alpha", "positive", alpha)
        self.alpha = alpha

    def slack(self, weights: Tensor) -> Tensor:
        return weights[1:] / self.alpha

    def __call__(self, violations: Tensor, weights: Tensor) -> Tensor:
        return violations - self.slack(weights).to(violations)


class StallDetector(nn.Module):
    """Reports once each constraint that keeps most of the weight it can have, without progress.

    A stalled, likely infeasible constraint kept at least `weight` of its highest weight for `updates` consecutive
    observed updates. Its mean violation over the second half is positive, and less than `improvement` (relative) below
    the first half's. `reached` is that mean: loosening the threshold by it makes the threshold what the policy reached.

    Args:
        weight: share of the highest weight, in (0.5, 1].
    """

    changes_learning = False

    count: Tensor
    first_half: Tensor
    second_half: Tensor
    told: Tensor
    reached: Tensor

    def __init__(self, weight: float = 0.9, updates: int = 200, improvement: float = 0.05) -> None:
        super().__init__()
        expect(0.5 < weight <= 1, "weight", "in (0.5, 1]", weight)
        expect(updates >= 2, "updates", "at least 2", updates)
        expect(0 <= improvement < 1, "improvement", "in [0, 1)", improvement)
        self.weight, self.updates, self.improvement = weight, updates, improvement
        self.size: int | None = None

    def setup(self, size: int) -> None:
        if self.size == size:
            return
        self.register_buffer("count", torch.zeros(size, dtype=torch.int64))
        for name in ("first_half", "second_half", "reached"):
            self.register_buffer(name, torch.zeros(size, dtype=torch.float64), persistent=name != "reached")
        self.register_buffer("told", torch.zeros(size, dtype=torch.bool))
        self.size = size

    def update(self, weights: Tensor, violations: Tensor, observed: Tensor, highest: Tensor | None = None) -> list[int]:
        """Add one update; return the indices of newly stalled constraints.

        Args:
            weights: ``[1 + K]`` of the policy.
            highest: ``[K]`` highest weights that the constraints can have; by default 1.
            violations: ``[K]``, without slack.
            observed: ``[K]`` bool; an unobserved update neither counts nor ends a period.
        """
        if self.size is None:
            raise RuntimeError("Expected `setup` before `update`, but got no number of constraints yet.")
        weights, violations = weights.to(self.first_half), violations.to(self.first_half)
        observed = observed.to(self.count.device)
        half = self.updates // 2
        highest = torch.ones_like(weights[1:]) if highest is None else highest.to(weights)
        holds = observed & (weights[1:] >= self.weight * highest)
        self.first_half += torch.where(holds & (self.count < half), violations, 0)
        self.second_half += torch.where(holds & (self.count >= self.updates - half), violations, 0)
        self.count += holds
        complete = self.count == self.updates
        enough = (1 - self.improvement) * self.first_half
        stalled = complete & ~self.told & (self.second_half > 0) & (self.second_half >= enough)
        self.reached = torch.where(stalled, self.second_half / max(half, 1), self.reached)
        over = complete | (observed & ~holds)
        for state in (self.count, self.first_half, self.second_half):
            state.masked_fill_(over, 0)
        self.told |= stalled
        return [int(k) for k in stalled.nonzero()]
