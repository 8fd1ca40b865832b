"""Intervals of rates over groups of answers, whose answers to one prompt are alike."""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy.special import stdtrit

from lightning_cgrpo.verdicts.binomial import lower_bound, upper_bound


@dataclass(frozen=True)
class ClusteredRate:
    """A rate over prompts with several answers, or steps, each.

    Args:
        rate: violations / opportunities.
        standard_error: clustered by prompt; None if all prompts agree.
        prompts: with opportunities.
        opportunities: of all prompts.
    """

    rate: float
    standard_error: float | None
    prompts: int
    opportunities: float

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

        Clopper-Pearson with the effective sample size, reduced for few prompts (Korn and Graubard, *Confidence
        intervals for proportions with small expected number of positive counts estimated from survey data*, 1998).
        Approximate: if only two or three prompts are expected to violate, the upper bound of confidence 0.975 misses
        in up to 6 % of evaluations. Certificates use one answer per prompt, and exact bounds.
        """
        size = self.effective
        if self.standard_error and self.prompts > 1 and size > 1 and self.opportunities > 1:
            many, few = (stdtrit(freedom, 1 - level) for freedom in (self.opportunities - 1, self.prompts - 1))
            size *= float(many / few) ** 2
        violations = self.rate * size
        return lower_bound(violations, size, level), upper_bound(violations, size, level)


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
        half = (self.standard_error or 0.0) * float(stdtrit(self.prompts - 1, 1 - level))
        return self.rate - half, self.rate + half
