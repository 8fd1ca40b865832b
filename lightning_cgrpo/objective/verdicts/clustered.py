"""Intervals of rates over groups of answers, whose answers to one prompt are alike."""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy.special import stdtrit

from lightning_cgrpo.objective.verdicts.binomial import upper_bound


@dataclass(frozen=True)
class ClusteredRate:
    """A rate over prompts with several answers, or steps, each.

    Args:
        rate: violations / opportunities.
        standard_error: clustered by prompt; None if all prompts agree.
        prompts: with opportunities.
        opportunities: of all prompts.
        violating: prompts with any violation; None takes all to be.
        clean: prompts with any opportunity without a violation.
        violating_effective: number of prompts with equal opportunities that would say as much as the violating ones,
            (Σ o)² / Σ o²; None takes their opportunities to be equal.
        clean_effective: the same of the clean prompts.
        most: largest number of opportunities that a prompt can have, as declared; None takes all to have as many.
        telling: number of prompts that would tell the standard error as well, if they made equal parts of it.
    """

    rate: float
    standard_error: float | None
    prompts: int
    opportunities: float
    violating: int | None = None
    clean: int | None = None
    violating_effective: float | None = None
    clean_effective: float | None = None
    most: float | None = None
    telling: float | None = None

    @property
    def effective(self) -> float:
        """Number of independent answers that would measure the rate equally well: opportunities / design effect.

        Only prompts count where the likeness of a prompt's answers can't be estimated: all may be copies.
        """
        if self.rate in (0, 1) or self.prompts < 2:
            return float(self.prompts)
        if not self.standard_error:
            return self.opportunities
        return min(self.rate * (1 - self.rate) / self.standard_error**2, self.opportunities)

    def bounds(self, level: float) -> tuple[float, float]:
        """One-sided lower and upper bounds, each of confidence 1 - `level`.

        Clopper-Pearson with the effective sample size, reduced because the standard error is an estimate (Korn and
        Graubard, *Confidence intervals for proportions with small expected number of positive counts estimated from
        survey data*, 1998). Only prompts with violations tell how much of a prompt violates, so their effective number
        less one is the degrees of freedom of the upper bound, which are at most the number of prompts that tell the
        standard error. The upper bound is at most that of copies: the share of violating prompts, each with the most
        opportunities. It is at least the rate with all prompts that may be too rare to be sampled, all in violation,
        each with the most opportunities. Approximate: in simulations, a bound of confidence 0.975 misses in
        up to 2.9 % of evaluations (`python -m benchmarks.verdicts`). Certificates use one answer per prompt, and exact
        bounds.
        """
        upper = self._upper_bound(self.rate, self.violating, self.violating_effective, level)
        # The lower bound is the upper bound of the rate of clean opportunities, from the other side.
        clean_upper = self._upper_bound(1 - self.rate, self.clean, self.clean_effective, level)
        return 1 - clean_upper, upper

    def _upper_bound(self, rate: float, violating: int | None, effective: float | None, level: float) -> float:
        """The upper bound of a rate, see `bounds`.

        Args:
            violating: prompts with any violation; None takes all to be.
            effective: their effective number, see `violating_effective`.
        """
        prompts = float(self.prompts)
        affected = prompts if violating is None else min(float(violating), prompts)
        weight = self._largest_weight
        # The bound if all answers to a prompt were copies. A violating prompt may have the most opportunities; prompts
        # with more may count more than their share.
        copies = max(rate * prompts, affected)
        copies_bound = min(weight * upper_bound(copies, prompts, level), 1.0)
        # Kish's number of violating prompts: few with many opportunities say less than their number.
        effective_violating = affected if effective is None else min(effective, affected)
        if effective_violating < 2 and violating is not None:
            return copies_bound
        # The effective sample size, smaller because the standard error is an estimate.
        size = self.effective
        if self.standard_error and effective_violating > 1 and size > 1 and self.opportunities > 1:
            freedom = effective_violating - 1
            if self.telling is not None:
                freedom = min(freedom, self.telling)
            many_quantile = stdtrit(self.opportunities - 1, 1 - level)
            few_quantile = stdtrit(freedom, 1 - level)
            size *= float(many_quantile / few_quantile) ** 2
        # Prompts that are too rare to be sampled may have the most opportunities, all in violation.
        unseen = upper_bound(0, prompts, level) * weight
        unseen_bound = rate + (1 - rate) * unseen / (1 + unseen)
        sample_bound = upper_bound(rate * size, size, level)
        return min(max(sample_bound, unseen_bound), copies_bound)

    def upper_if_clean(self, level: float) -> float:
        """The upper bound, had no prompt violated."""
        return min(self._largest_weight * upper_bound(0, self.prompts, level), 1.0)

    @property
    def _largest_weight(self) -> float:
        """The largest number of opportunities of a prompt / their mean."""
        if self.most is None or not self.opportunities:
            return 1.0
        return max(self.most * self.prompts / self.opportunities, 1.0)


@dataclass(frozen=True)
class ClusteredMean(ClusteredRate):
    """The mean of a signal over prompts with several answers each."""

    def bounds(self, level: float) -> tuple[float, float]:
        """One-sided lower and upper bounds, each of confidence 1 - `level`, by Student's t with prompts as samples.

        Approximate: a mean of few prompts with a heavy tail misses more often. Certificates use bounds that hold for
        any distribution.
        """
        if self.prompts < 2:
            return -math.inf, math.inf
        half_width = (self.standard_error or 0.0) * float(stdtrit(self.prompts - 1, 1 - level))
        return self.rate - half_width, self.rate + half_width

    def upper_if_clean(self, level: float) -> float:
        """Minus infinity, because a mean has no least value."""
        return -math.inf
