"""A guard against infeasible constraints: a detector of stalls."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lightning_cgrpo.core.errors import expect

WEIGHT = 0.9
"""Share of its cap that a multiplier near the cap has."""
SURE = 3.0
"""Standard errors that make a violation, or progress, more than noise."""


class StallDetector(nn.Module):
    """Finds a constraint that keeps nearly all the weight it can have, violated and without progress.

    A stalled, likely infeasible constraint kept at least `WEIGHT` of its cap for `updates` consecutive observed
    updates. Its mean violation over the second half is above 0, and not below the first half's, each by `SURE` standard
    errors. A feasible constraint of a high price is at its threshold on average, so it does not stall. Of several at
    their caps for half as long, the worst stalls, because the others may be met once it gives way. Progress ends a
    period, but not the time at the cap: an infeasible constraint may make progress at the cost of a feasible one.

    Args:
        updates: near the cap, at least 4.
    """

    count: Tensor
    held: Tensor
    sums: Tensor
    squares: Tensor
    told: Tensor
    reached: Tensor

    def __init__(self, updates: int = 200) -> None:
        super().__init__()
        expect(updates >= 4, "updates", "at least 4", updates)
        self.updates = updates
        self.size: int | None = None

    def setup(self, size: int) -> None:
        if self.size == size:
            return
        self.register_buffer("count", torch.zeros(size, dtype=torch.int64))  # updates of this period
        self.register_buffer("held", torch.zeros(size, dtype=torch.int64))  # updates at the cap, over all periods
        self.register_buffer("told", torch.zeros(size, dtype=torch.bool))
        for name in ("sums", "squares"):  # of the first and the second half
            self.register_buffer(name, torch.zeros(2, size, dtype=torch.float64))
        self.register_buffer("reached", torch.zeros(size, dtype=torch.float64))
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
        saturation = saturation.to(self.sums)
        violations = violations.to(self.sums)
        observed = observed.to(self.count.device)
        half = self.updates // 2
        # A resume with fewer updates begins a period.
        self._begin_period(self.count >= self.updates)
        # Add the update to the halves of the period that it belongs to, for constraints near their caps.
        near_cap = observed & (saturation >= WEIGHT)
        added = torch.where(near_cap, violations, 0)
        halves = torch.stack([self.count < half, self.count >= self.updates - half])  # [2, K]
        self.sums = self.sums + halves * added
        self.squares = self.squares + halves * added.square()
        self.count = self.count + near_cap
        self.held = torch.where(observed, (self.held + 1) * near_cap, self.held)
        # Compare the halves of a complete period: the mean violation and its squared standard error in each.
        complete = self.count == self.updates
        means = self.sums / half  # [2, K]
        first_mean, second_mean = means
        squared_errors = (self.squares / half - means.square()).clamp(min=0) / max(half - 1, 1)
        violated = second_mean > SURE * squared_errors[1].sqrt()
        progress = first_mean - second_mean > SURE * squared_errors.sum(0).sqrt()
        stalled = complete & violated & ~progress & ~self.told
        # A constraint may have made progress at the cost of the others, and so have begun a new period. Its mean is
        # that of the last period, until the new one has as many updates.
        self.reached = torch.where(self.count >= half, self.sums.sum(0) / self.count.clamp(min=1), self.reached)
        self.reached = torch.where(complete, second_mean, self.reached)
        # The worst constraint stalls. A constraint that has just reached its cap may be met soon.
        long_at_cap = near_cap & ~self.told & (self.held >= half)
        candidates = torch.where(long_at_cap, self.reached, -torch.inf)
        worst = int(candidates.argmax()) if bool(stalled.any()) else None
        # A constraint that gives its weight back may stall again; the others start again beside the stalled.
        self.told = self.told & (near_cap | ~observed)
        if worst is not None:
            self.told[worst] = True
        left_cap = observed & ~near_cap
        self._begin_period(complete | left_cap | (worst is not None))
        return worst

    def _begin_period(self, over: Tensor) -> None:
        """Begin a period of the constraints whose last one is over, ``[K]`` bool."""
        self.count = torch.where(over, 0, self.count)
        self.sums = torch.where(over, 0, self.sums)
        self.squares = torch.where(over, 0, self.squares)
