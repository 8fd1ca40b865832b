"""Guards against infeasible constraints: bounds reserve weight for each component, and a detector warns."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from lightning_cgrpo.core.errors import UserError, did_you_mean, expect

SURE = 3.0
"""Standard errors that make a violation, or progress, more than noise."""
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


class StallDetector(nn.Module):
    """Finds a constraint that keeps nearly all the weight it can have, violated and without progress.

    A stalled, likely infeasible constraint kept at least `weight` of its cap for `updates` consecutive observed
    updates. Its mean violation over the second half is above 0, and not below the first half's, each by `SURE` standard
    errors. A feasible constraint of a high price is at its threshold on average, so it does not stall. Of several at
    their caps for half as long, the worst stalls, because the others may be met once it gives way.

    Args:
        weight: share of the cap, in (0.5, 1].
    """

    count: Tensor
    sums: Tensor
    squares: Tensor
    told: Tensor
    reached: Tensor

    def __init__(self, weight: float = 0.9, updates: int = 200) -> None:
        super().__init__()
        expect(0.5 < weight <= 1, "weight", "in (0.5, 1]", weight)
        expect(updates >= 4, "updates", "at least 4", updates)
        self.weight, self.updates = weight, updates
        self.size: int | None = None

    def setup(self, size: int) -> None:
        if self.size == size:
            return
        self.register_buffer("count", torch.zeros(size, dtype=torch.int64))
        self.register_buffer("told", torch.zeros(size, dtype=torch.bool))
        for name in ("sums", "squares"):  # of the first and the second half
            self.register_buffer(name, torch.zeros(2, size, dtype=torch.float64))
        self.register_buffer("reached", torch.zeros(size, dtype=torch.float64), persistent=False)
        self.size = size

    def update(self, saturation: Tensor, violations: Tensor, observed: Tensor) -> int | None:
        """Add one update; return the index of a newly stalled constraint, whose mean violation is in `reached`.

        Args:
            saturation: ``[K]`` shares of the caps, see `Controller.saturation`.
            violations: ``[K]``, without a margin.
            observed: ``[K]`` bool; an unobserved update neither counts nor ends a period.
        """
        if self.size is None:
            raise RuntimeError("Expected `setup` before `update`, but got no number of constraints yet.")
        saturation, violations = saturation.to(self.sums), violations.to(self.sums)
        observed = observed.to(self.count.device)
        half = self.updates // 2
        holds = observed & (saturation >= self.weight)
        added = torch.where(holds, violations, 0)
        halves = torch.stack([self.count < half, self.count >= self.updates - half])
        self.sums = self.sums + halves * added
        self.squares = self.squares + halves * added.square()
        self.count = self.count + holds
        complete = self.count == self.updates
        means = self.sums / half
        variances = (self.squares / half - means.square()).clamp(min=0) / max(half - 1, 1)
        violated = means[1] > SURE * variances[1].sqrt()
        progress = means[0] - means[1] > SURE * variances.sum(0).sqrt()
        stalled = complete & violated & ~progress & ~self.told
        # The worst may have made progress at the cost of the others, and so have begun a new period.
        self.reached = torch.where(complete, means[1], self.sums.sum(0) / self.count.clamp(min=1))
        # A constraint that has just reached its cap may be met soon.
        at_cap = torch.where(holds & ~self.told & (self.count >= half), self.reached, -torch.inf)
        worst = int(at_cap.argmax()) if bool(stalled.any()) else None
        # A constraint that gives its weight back may stall again; the others start again beside the stalled.
        self.told = self.told & (holds | ~observed)
        if worst is not None:
            self.told[worst] = True
        over = complete | (observed & ~holds) | (worst is not None)
        self.count = torch.where(over, 0, self.count)
        self.sums, self.squares = torch.where(over, 0, self.sums), torch.where(over, 0, self.squares)
        return worst
