"""Verdicts on the constraints of a policy: certified, refuted or undecided."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from lightning_cgrpo.objective.verdicts import binomial, ratio
from lightning_cgrpo.objective.verdicts.binomial import LARGEST, least_number
from lightning_cgrpo.objective.verdicts.holm import holm_levels

Decision = Literal["certified", "refuted", "undecided"]


@dataclass(frozen=True)
class Counts:
    """A constraint's counts, of one answer to each of N independent prompts.

    Args:
        violations: ``[N]``.
        opportunities: ``[N]``; 0 for an answer to which the constraint does not apply.
        threshold: largest rate of violation allowed.
        most: largest number of opportunities that any answer can have, as declared, not as sampled.
        mean: whether violations are numbers from 0 to the opportunities, not counts.
    """

    violations: ratio.Counts
    opportunities: ratio.Counts
    threshold: float
    most: float = 1.0
    mean: bool = False

    @property
    def single(self) -> bool:
        """True if every answer is one violation or none, out of at most one opportunity.

        The declaration decides, because a test that is chosen after the sample has no level: where one answer in 1,000
        has 100 opportunities, most samples of 200 hold none of these.
        """
        return self.most <= 1 and not self.mean

    @property
    def totals(self) -> tuple[float, float]:
        """Violations and opportunities of all answers."""
        return float(self.violations.sum()), float(self.opportunities.sum())

    def p_values(self) -> tuple[float, float]:
        """Evidence that the rate is below, and above, the threshold."""
        violations, opportunities = self.totals
        if not opportunities:
            return 1.0, 1.0
        if self.single:
            # The exact test.
            counts = int(violations), int(opportunities), self.threshold
            met = binomial.p_value_met(*counts)
            missed = binomial.p_value_missed(*counts)
            return met, missed
        # The betting test.
        met = ratio.p_value_met(self.violations, self.opportunities, self.most, self.threshold)
        missed = ratio.p_value_missed(self.violations, self.opportunities, self.most, self.threshold)
        return met, missed

    def bounds(self, below: float, above: float) -> tuple[float, float]:
        """The rate's lower bound of confidence 1 - `below`, and upper bound of confidence 1 - `above`."""
        violations, opportunities = self.totals
        if not opportunities:
            return 0.0, 1.0
        if self.single:
            lower = binomial.lower_bound(violations, opportunities, below)
            upper = binomial.upper_bound(violations, opportunities, above)
            return lower, upper
        lower = ratio.lower_bound(self.violations, self.opportunities, self.most, below)
        upper = ratio.upper_bound(self.violations, self.opportunities, self.most, above)
        return lower, upper

    def prompts_needed(self, level: float) -> int | None:
        """Prompts that would decide at the observed rate, see `prompts_needed`."""
        violations, opportunities = self.totals
        if not opportunities:
            return None
        if not self.single:
            return ratio.prompts_needed(self.violations, self.opportunities, self.most, self.threshold, level)
        needed = binomial.prompts_needed(violations / opportunities, self.threshold, level)
        if needed is None:
            return None
        # Prompts to which the constraint does not apply don't count.
        return math.ceil(needed * len(self.opportunities) / opportunities)


@dataclass(frozen=True)
class Verdict:
    """A decision on one constraint; rates are rates of violation.

    Args:
        rate: observed; None without opportunities.
        lower: the rate's lower bound. The lower bounds of all constraints hold together with the confidence, as do the
            upper bounds.
        upper: the rate's upper bound; of a certified constraint the threshold, unless all are certified.
        needed: prompts that would decide with 80 % probability, if the rate were the observed rate; None if decided,
            or if no number would.
    """

    decision: Decision
    rate: float | None
    lower: float
    upper: float
    needed: int | None


def verdicts(counts: Mapping[str, Counts], confidence: float) -> dict[str, Verdict]:
    """A verdict on each constraint.

    The probability of any false certificate is at most 1 - `confidence`, over all constraints together (Holm). The same
    holds for any false refutation. Bounds are simultaneous (Guilbaud, *Simultaneous confidence regions corresponding to
    Holm's step-down procedure*, 2008): a bound at the level of a step of Holm's would hold for its constraint alone.
    """
    alpha = 1 - confidence
    # Two families of tests, each with Holm's levels: rates below, and above, their thresholds.
    met_p_values: list[float] = []
    missed_p_values: list[float] = []
    for measured in counts.values():
        met_p_value, missed_p_value = measured.p_values()
        met_p_values.append(met_p_value)
        missed_p_values.append(missed_p_value)
    met_tests = holm_levels(met_p_values, alpha)
    missed_tests = holm_levels(missed_p_values, alpha)
    decided: dict[str, Verdict] = {}
    tests = zip(counts.items(), met_tests, missed_tests, strict=True)
    for (name, measured), (certified, met_level), (refuted, missed_level) in tests:
        violations, opportunities = measured.totals
        threshold = measured.threshold
        # The bounds, which agree with the decision.
        lower_level = _joint_level(missed_tests, missed_level, alpha)
        upper_level = _joint_level(met_tests, met_level, alpha)
        lower, upper = measured.bounds(lower_level, upper_level)
        if certified:
            upper = min(upper, threshold) if all_rejected(met_tests) else threshold
        if refuted:
            lower = max(lower, threshold) if all_rejected(missed_tests) else threshold
        rate = violations / opportunities if opportunities else None
        decision: Decision = "undecided"
        needed = None
        if certified:
            decision = "certified"
        elif refuted:
            decision = "refuted"
        elif rate is not None:
            needed = measured.prompts_needed(met_level if rate <= threshold else missed_level)
        decided[name] = Verdict(decision, rate, lower, upper, needed)
    return decided


def all_rejected(tests: Sequence[tuple[bool, float]]) -> bool:
    """True if every test of `holm_levels` rejects."""
    return all(rejected for rejected, _ in tests)


def _joint_level(tests: Sequence[tuple[bool, float]], level: float, alpha: float) -> float:
    """The level of a bound: Bonferroni's if all tests reject, else that at which Holm's steps ended."""
    if all_rejected(tests):
        return alpha / len(tests)
    return level


def overall_decision(decisions: Sequence[Decision]) -> Decision:
    """Certified if all are, refuted if any is."""
    if "refuted" in decisions:
        return "refuted"
    if all(decision == "certified" for decision in decisions):
        return "certified"
    return "undecided"


@dataclass(frozen=True)
class PlannedTest:
    """What is known of a constraint's test before the look.

    Args:
        threshold: largest rate of violation allowed.
        share: opportunities of an answer / the most that an answer can have, for the betting test; None for the exact
            test of answers with one opportunity.
    """

    threshold: float
    share: float | None = None

    def p_value_clean(self, prompts: int) -> float:
        """The p-value of `prompts` answers without a violation."""
        if self.share is None:
            return binomial.p_value_met(0, prompts, self.threshold)
        return ratio.p_value_clean(prompts, self.share, self.threshold)


def fewest_prompts(tests: Sequence[PlannedTest], confidence: float) -> int | None:
    """Prompts that certify all thresholds together without any violation; None if one can't be certified.

    Example:
        >>> [fewest_prompts([PlannedTest(0.01)] * count, 0.95) for count in (1, 3)]
        [299, 408]
        >>> fewest_prompts([PlannedTest(0.01, share=0.5)], 0.95)  # answers of half the longest length
        627
    """
    if not tests or any(test.threshold <= 0 for test in tests):
        return None

    def certify_all(prompts: int) -> bool:
        p_values = [test.p_value_clean(prompts) for test in tests]
        return all_rejected(holm_levels(p_values, 1 - confidence))

    return least_number(certify_all, LARGEST)
