"""From a look's sums to its certificate: decisions, their tests, and bounds of the rates."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_cgrpo.core.distributed import all_sum
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.rollout import Signals, over_steps
from lightning_cgrpo.objective.constraint import Constraint
from lightning_cgrpo.objective.evaluation import CLUSTER
from lightning_cgrpo.objective.moments import faults_of, opportunities_of, violations_of
from lightning_cgrpo.objective.objective import Objective
from lightning_cgrpo.objective.subsets import signal_key
from lightning_cgrpo.objective.verdicts.verdict import Counts, PlannedTest, fewest_prompts, overall_decision, verdicts
from lightning_cgrpo.run.looks import Asked
from lightning_cgrpo.settings.configuration import ConfigError

Array = NDArray[Any]

EDGE = 1e-6
"""Share of a declared range by which a value may lie outside, because of its rounding."""


@dataclass(frozen=True)
class Sample:
    """A look's measurements.

    Args:
        rows: sums of an answer by name, ``[N]``: one answer to each of N different prompts. `CLUSTER` numbers the
            independent samples that the prompts belong to; without it, prompts are assumed to be independent.
        source: words that say which prompts.
        longest: steps of the longest answer, as declared; None without a declaration.
        single: by constraint, whether an answer has at most one opportunity, by the kind of its signal.
        told: differences of the measured policy to its training.
    """

    rows: dict[str, Tensor]
    source: str
    longest: int | None
    single: Mapping[str, bool] = field(default_factory=dict)
    told: Sequence[str] = ()


def certificate_of(sample: Sample, objective: Objective, asked: Asked) -> dict[str, Any]:
    """The decisions on the constraints, with bounds in the user's orientation.

    Raises:
        UserError: signals that give no verdict; nothing is shown of the answers.
    """
    counts = {}
    for name in objective.decided:
        counts[name] = _constraint_counts(objective, name, sample.rows, sample.longest, sample.single.get(name, False))
    prompts = len(sample.rows["answers"])
    clusters = sample.rows.get(CLUSTER)
    samples = prompts if clusters is None else len(clusters.unique())
    verdict_of = verdicts(counts, 1 - asked.level)

    constraints: dict[str, dict[str, Any]] = {}
    for name, verdict in verdict_of.items():
        constraint = objective.constrained[name]
        bound = constraint.bound
        # Verdicts are about shares of the range of violations: put them back into units of the user's threshold.
        least, width = _violation_range(name, constraint, sample.longest)
        low, high = bound.shown_interval(least + width * verdict.lower, least + width * verdict.upper)
        constraints[name] = {
            "decision": verdict.decision,
            bound.key: bound.threshold,
            "rate": None if verdict.rate is None else bound.shown(least + width * verdict.rate),
            "low": low,
            "high": high,
            "prompts_that_would_decide": verdict.needed and math.ceil(verdict.needed * prompts / max(samples, 1)),
        }
        if constraint.given is not None:
            constraints[name]["given"] = constraint.given
    return {
        "decision": overall_decision([verdict.decision for verdict in verdict_of.values()]),
        "prompts": prompts,
        "samples": samples,
        "source": sample.source,
        "constraints": constraints,
        "assumptions": list(_assumptions(objective, sample)),
        "not_as_in_training": [*sample.told],
        "not_certified": list(_not_certified(objective)),
    }


def _not_certified(objective: Objective) -> Iterator[str]:
    """Sentences about declared constraints that have no verdict."""
    for name in objective.constraints:
        if name not in objective.decided:
            reason = "no range" if name in objective.constrained else "monitored"
            yield f"{name} ({reason})"
    yield "the reward"


def _assumptions(objective: Objective, sample: Sample) -> Iterator[str]:
    """Assumptions of the verdicts that no answer can show."""
    yield _describe_independence(sample.rows.get(CLUSTER))
    all_single = all(sample.single.get(name, False) for name in objective.decided)
    if sample.longest is not None and not all_single:
        yield f"an answer has at most {sample.longest:,} steps"
    for name, constraint in objective.decided.items():
        if not constraint.bound.of_mean:
            continue
        least, width = _violation_range(name, constraint, sample.longest)
        low, high = sorted(constraint.bound.shown_interval(least, least + width))
        low = low or 0.0  # -0.0 is written as 0
        high = high or 0.0
        beyond = _count_beyond_range(sample.rows, name, least, width)
        cut = f" ({beyond:,} answers beyond count as its edge)" if beyond else ""
        yield f"{name} is the mean of values cut to {low:g} to {high:g}{cut}"


def _describe_independence(clusters: Tensor | None) -> str:
    """A sentence about prompts that belong together: known or assumed.

    Args:
        clusters: numbers of the prompts' samples ``[N]``, equal within one; None where they are not known.
    """
    drawn = "drawn as those that the policy will meet"
    if clusters is None:
        return f"the prompts are independent (their clusters are not known), and {drawn}"
    sizes = clusters.unique(return_counts=True)[1]
    fresh = "other prompts of a cluster that trained count as new"
    if len(sizes) == len(clusters):
        return f"the prompts are independent (each is a cluster of its own), and {drawn}; {fresh}"
    return (
        f"the {len(sizes):,} clusters of prompts are independent, {drawn}, and have at most {int(sizes.max()):,} "
        f"prompts, as the largest here; {fresh}"
    )


def _count_beyond_range(rows: Mapping[str, Tensor], name: str, least: float, width: float) -> int:
    """The number of answers whose values are beyond their declared range."""
    opportunities = rows[opportunities_of(name)]
    violations = (rows[violations_of(name)] - least * opportunities) / width
    # Signals are float32, which rounds a value at the edge of its range.
    rounding = EDGE * opportunities
    below = violations < -rounding
    above = violations > opportunities + rounding
    return int((below | above).sum())


def cluster_sizes(prompts: int, clusters: Sequence[float] | None) -> Array:
    """The number of prompts of each independent sample."""
    if clusters is None:
        return np.ones(prompts)
    _, sizes = np.unique(clusters, return_counts=True)
    return sizes


def check_ranges(objective: Objective, longest: int | None) -> None:
    """Raise a `ConfigError` for a mean without a range, before anything is sampled."""
    for name, constraint in objective.decided.items():
        _violation_range(name, constraint, longest)


def planned_tests(
    objective: Objective, signals: Signals, longest: int | None, sizes: Array | None = None
) -> dict[str, PlannedTest]:
    """The test of each constraint on a rate, by the kinds of a batch's signals. Collective.

    Numbers of opportunities are read here, and no violation. Without signals, all tests are exact, because other tests
    need more prompts.

    Args:
        sizes: prompts of each sample, see `cluster_sizes`.
    """
    planned = {}
    for name, constraint in objective.decided.items():
        if constraint.bound.of_mean:
            continue
        signal = signals.get(signal_key(name, constraint))
        # The mean share of the most opportunities of a sample; None if every sample has one, or none is seen.
        share = None
        if signal is not None and not signal.of_whole_answers:
            _, opportunities = signal.counts()
            opportunities_BG = over_steps(opportunities).double()  # [groups, answers]
            answers = torch.tensor(float(opportunities_BG.numel()), device=opportunities_BG.device).double()
            # The sums of all processes.
            all_opportunities, all_answers = all_sum(torch.stack([opportunities_BG.sum(), answers])).tolist()
            share = max(all_opportunities / all_answers / (longest or 1), 1e-6)
        if sizes is not None and sizes.max(initial=1) > 1:
            # A sample is a cluster of prompts, and may have as many opportunities as the largest cluster.
            if share is None:
                share = 1.0
            share = share * float(sizes.mean() / sizes.max())
        planned[name] = PlannedTest(constraint.bound.target, share)
    return planned


def check_prompts(
    planned: Mapping[str, PlannedTest],
    prompts: float,
    confidence: float,
    available: int | None,
    clustered: bool = False,
) -> None:
    """Refuse a look that could certify nothing even without a violation.

    Args:
        planned: the test of each constraint.
        prompts: independent samples.
        confidence: confidence of this look.
        available: prompts that the data has; None if the data generates any number.
        clustered: whether samples are clusters of prompts.

    Raises:
        ConfigError: too few prompts, or a threshold that no number of prompts certifies.
    """
    for name, test in planned.items():
        if test.threshold == 0:
            raise ConfigError(
                f"Expected thresholds that prompts can certify, but constraint '{name}' allows no violation at all, "
                "try a small rate, such as 0.001."
            )
    # The prompts that certify all constraints if no answer violates one; None if no number does.
    fewest = fewest_prompts(list(planned.values()), confidence)
    if not planned or (fewest is not None and prompts >= fewest):
        return
    if fewest is None:
        strictest = min(planned, key=lambda name: planned[name].threshold)
        raise ConfigError(
            f"Expected thresholds that prompts can certify, but constraint '{strictest}' allows a rate of "
            f"{planned[strictest].threshold:g}, for which a billion prompts are too few, try a larger one, such as "
            "0.001."
        )
    words = "clusters of prompts" if clustered else "prompts"
    remedy = _advise_more_prompts(fewest, available, clustered)
    raise ConfigError(
        f"Expected at least {fewest} {words}, because fewer can't certify {', '.join(planned)} with confidence "
        f"{confidence:.4g} even without a violation, but got {prompts:g}, try {remedy}."
    )


def _advise_more_prompts(fewest: int, available: int | None, clustered: bool) -> str:
    """Advice for a look with fewer independent samples than this; see `check_prompts`."""
    if clustered:
        return f"prompts of at least {fewest} clusters"
    if available is not None and available < fewest:
        return f"a test set of {fewest} prompts or more"
    return f"--prompts {fewest} or more"


def _constraint_counts(
    objective: Objective, name: str, rows: dict[str, Tensor], longest: int | None, whole: bool
) -> Counts:
    """The counts of a constraint.

    Args:
        whole: an answer has at most one opportunity, by declaration.
    """
    constraint = objective.constrained[name]
    _check_faults(name, constraint, rows)
    violations = rows[violations_of(name)].numpy()  # [prompts]
    opportunities = rows[opportunities_of(name)].numpy()  # [prompts]

    # A mean becomes a rate: the share of its range by which a value violates. Values beyond the range are cut to it.
    least, width = _violation_range(name, constraint, longest)
    violations = (violations - least * opportunities) / width
    if constraint.bound.of_mean:
        violations = violations.clip(0, opportunities)
    threshold = (constraint.bound.target - least) / width

    # The test relies on the most opportunities of an answer.
    most = 1.0 if whole else float(longest or 1)
    if opportunities.max(initial=0) > most or (whole and not np.isin(opportunities, (0, 1)).all()):
        raise UserError(
            f"Expected at most {most:g} opportunities per answer for '{name}', the sampler's longest answer, but "
            f"got {opportunities.max():g}, try a signal of whole answers; the look is spent."
        )
    if CLUSTER in rows:
        violations, opportunities, largest = _sum_clusters(rows[CLUSTER], violations, opportunities)  # [samples]
        most *= largest
    return Counts(violations, opportunities, threshold, most, constraint.bound.of_mean)


def _check_faults(name: str, constraint: Constraint, rows: Mapping[str, Tensor]) -> None:
    """Raise a `UserError` where answers lack a finite signal that the constraint reads."""
    signals = [constraint.signal or name]
    if constraint.given is not None:
        signals.append(constraint.given)
    faults = max(int(rows[faults_of(signal)].sum()) for signal in signals)
    if faults:
        raise UserError(
            f"Expected finite signals for a verdict on '{name}', but got {faults} of {len(rows['answers'])} answers "
            "without, try to mend the task's scores; the look is spent."
        )


def _sum_clusters(clusters: Tensor, violations: Array, opportunities: Array) -> tuple[Array, Array, float]:
    """Sums over the prompts that belong together, which are one sample with all of their opportunities.

    Args:
        clusters: numbers of the prompts' samples ``[N]``, equal within one.
        violations: violations of each prompt ``[N]``.
        opportunities: opportunities of each prompt ``[N]``.

    Returns:
        Violations ``[S]`` and opportunities ``[S]`` of the S samples, and the prompts of the largest sample.
    """
    _, numbers, sizes = np.unique(clusters.numpy(), return_inverse=True, return_counts=True)
    violations = np.bincount(numbers, violations).astype(float)
    opportunities = np.bincount(numbers, opportunities).astype(float)
    return violations, opportunities, float(sizes.max(initial=1))


def _violation_range(name: str, constraint: Constraint, longest: int | None) -> tuple[float, float]:
    """Least level of violation, and the width of its range: 0 and 1 for a rate.

    Raises:
        ConfigError: a mean has no declared range, without which no number of answers bounds it.
    """
    if not constraint.bound.of_mean:
        return 0.0, 1.0
    least, most = constraint.range or (0.0, 0.0)
    counts_tokens = (constraint.signal or name) == "tokens"
    if constraint.range is None and counts_tokens and longest is not None:
        most = float(longest)  # the range of an answer's length
    if least == most:
        raise ConfigError(
            f"Expected a range for a certificate of the mean '{name}', because one rare answer could move an unbounded "
            f"mean, but got none, try range: [LEAST, GREATEST] in the constraint."
        )
    if constraint.bound.lower:  # A lower bound on a value is an upper bound on its negative.
        return -most, most - least
    return least, most - least
