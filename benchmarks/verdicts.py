"""Error rates of verdicts, simulated with known rates, beside methods that fail or waste prompts.

    python -m benchmarks.verdicts              # about six minutes; writes benchmarks/results/verdicts.json
    python -m benchmarks.verdicts power looks  # only these parts of the file

Answers to a prompt are alike: each prompt has a rate of its own, beta-distributed with the given correlation of two
answers to the same prompt. A false certificate is a certificate of a policy whose rate is the threshold exactly, the
hardest case.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.populations import (
    ANSWERS,
    CLUSTERED,
    EQUAL,
    UNEQUAL,
    Array,
    Population,
    answers,
    callers,
    long_answers,
    some_long,
)
from lightning_cgrpo.objective.bound import Bound
from lightning_cgrpo.objective.moments import clustered_rates, moments
from lightning_cgrpo.objective.verdicts import ratio
from lightning_cgrpo.objective.verdicts.binomial import POWER, least_number, most_certified, p_value_met, prompts_needed
from lightning_cgrpo.objective.verdicts.clustered import ClusteredRate
from lightning_cgrpo.objective.verdicts.holm import holm_levels
from lightning_cgrpo.objective.verdicts.verdict import Counts
from lightning_cgrpo.run.looks import error_share

REPETITIONS = 10_000
LEVEL = 0.05
PROMPTS = 1_000
STEPS = 20
"""Largest number of steps of an episode."""
LOOKS = 2_000
CANDIDATES = 20
"""Checkpoints of which validation selects one."""
RESULTS = Path(__file__).parent / "results" / "verdicts.json"


def false_certificates(threshold: float, correlation: float, repetitions: int = REPETITIONS) -> dict[str, float]:
    """Shares of false certificates by method."""
    draw = np.random.default_rng(0)
    single = most_certified(PROMPTS, threshold, LEVEL)
    pooled = most_certified(PROMPTS * ANSWERS, threshold, LEVEL)
    certified = {"one answer": 0, "pooled": 0, "clustered": 0, "selected": 0, "selected, certified afresh": 0}
    for _ in range(repetitions):
        counts = answers(draw, threshold, correlation, (PROMPTS,))
        total = int(counts.sum())
        # The number of violations of one answer to each prompt, given the counts of eight.
        certified["one answer"] += int((draw.random(PROMPTS) * ANSWERS < counts).sum()) <= single
        certified["pooled"] += total <= pooled
        rate = total / (PROMPTS * ANSWERS)
        squares = ((counts - rate * ANSWERS) ** 2).sum()
        error = math.sqrt(PROMPTS / (PROMPTS - 1) * squares) / (PROMPTS * ANSWERS)
        affected = int((counts > 0).sum()), int((counts < ANSWERS).sum())
        clustered = ClusteredRate(rate, error or None, PROMPTS, PROMPTS * ANSWERS, *affected)
        certified["clustered"] += clustered.bounds(LEVEL)[1] <= threshold
        # Many checkpoints of the same rate: the luckiest on validation is certified there, or on new prompts.
        certified["selected"] += draw.binomial(PROMPTS, threshold, CANDIDATES).min() <= single
        certified["selected, certified afresh"] += draw.binomial(PROMPTS, threshold) <= single
    shares = {method: count / repetitions for method, count in certified.items()}
    return {"one answer, exactly": p_value_met(single, PROMPTS, threshold), **shares}


def false_joint_certificates(constraints: int, repetitions: int = REPETITIONS) -> dict[str, float]:
    """Shares with any false certificate among constraints that are all at their threshold of 1 %, and correlate."""
    draw = np.random.default_rng(0)
    each = holm = 0
    for _ in range(repetitions):
        # Half of the answers violate all constraints alike.
        alike, alone = draw.random((PROMPTS, 1)), draw.random((PROMPTS, constraints))
        violations = (np.where(draw.random((PROMPTS, 1)) < 0.5, alike, alone) < 0.01).sum(0)
        p_values = [p_value_met(int(count), PROMPTS, 0.01) for count in violations]
        each += min(p_values) <= LEVEL
        holm += any(rejected for rejected, _ in holm_levels(p_values, LEVEL))
    return {"each alone": each / repetitions, "Holm": holm / repetitions}


def false_step_certificates(prompts: int, repetitions: int = REPETITIONS) -> dict[str, float]:
    """Shares of false certificates of a rate over steps: a tenth of the episodes has all violations, at d = 5 %."""
    draw = np.random.default_rng(0)
    betting = pooled = 0
    for _ in range(repetitions):
        steps = draw.integers(4, STEPS + 1, prompts).astype(float)
        violations = draw.binomial(steps.astype(int), np.where(draw.random(prompts) < 0.1, 0.5, 0.0)).astype(float)
        betting += ratio.p_value_met(violations, steps, STEPS, 0.05) <= LEVEL
        pooled += p_value_met(int(violations.sum()), int(steps.sum()), 0.05) <= LEVEL
    return {"betting": betting / repetitions, "pooled": pooled / repetitions}


COVERED = ((200, 0.02), (200, 0.05), (200, 0.5), (1_000, 0.15))
"""Prompts, and rate; 2 to 7 prompts violate in most samples of the first."""


def of_unequal(violations: Array, opportunities: Array, most: float | Array | None) -> ClusteredRate | None:
    """The measured rate of N prompts, as an evaluation computes it; None without opportunities.

    Args:
        most: None leaves the opportunities' differences out.
    """
    rows = {"violations/x": torch.from_numpy(violations), "opportunities/x": torch.from_numpy(opportunities)}
    rows["most/x"] = torch.as_tensor(0.0 if most is None else most).double().expand_as(rows["opportunities/x"])
    sums = {name: row.sum() for name, row in rows.items()} | moments(["x"], rows)
    found = clustered_rates(["x"], {name: float(value) for name, value in sums.items()}).get("x")
    if found is None or most is not None:
        return found
    return replace(found, violating_effective=None, clean_effective=None, most=None, telling=None)


def coverage(
    made: Callable[[float], Population], rate: float, prompts: int, repetitions: int = REPETITIONS
) -> dict[str, float]:
    """Shares of evaluations whose 97.5 % bounds miss the rate, with and without regard to unequal opportunities."""
    draw = np.random.default_rng(0)
    population = made(rate)
    threshold = Bound(threshold=population.rate)
    found = dict.fromkeys(
        ("upper misses", "lower misses", "width", "as if equal: upper misses", "as if equal: width"), 0.0
    )
    found["too few"] = 0.0
    for _ in range(repetitions):
        rows = population.draw(draw, prompts)
        rate_found = of_unequal(*rows, population.most)
        as_equal = of_unequal(*rows, None)
        if rate_found is None or as_equal is None:
            found["width"] += 1
            found["as if equal: width"] += 1
            continue
        low, high = rate_found.bounds(0.025)
        found["upper misses"] += high < population.rate
        found["lower misses"] += low > population.rate
        found["width"] += high - low
        found["too few"] += threshold.word(rate_found) == "too few"
        low, high = as_equal.bounds(0.025)
        found["as if equal: upper misses"] += high < population.rate
        found["as if equal: width"] += high - low
    return {"rate": population.rate} | {name: total / repetitions for name, total in found.items()}


def covered(repetitions: int = REPETITIONS) -> list[dict[str, Any]]:
    """`coverage` by population, number of prompts and rate."""
    return [
        {"population": name, "prompts": prompts, **coverage(made, rate, prompts, repetitions)}
        for name, made in {**EQUAL, **UNEQUAL}.items()
        for prompts, rate in COVERED
    ]


def looks(repetitions: int = LOOKS) -> list[dict[str, Any]]:
    """Shares of runs with a false certificate at a rate that is the threshold, by kind of signal.

    One look has the whole error; sequences of five looks at a policy, and looks at ten checkpoints, share the error.
    """
    found = []
    for name, kind in KINDS.items():
        draw = np.random.default_rng(0)
        false = {1: 0, 5: 0, 10: 0}
        for _ in range(repetitions):
            false[1] += certified(kind(draw), LEVEL)
            shared = [certified(kind(draw), LEVEL * error_share(number + 1)) for number in range(10)]
            false[5] += any(shared[:5])
            false[10] += any(shared)
        numbers = {"one look": false[1], "five looks": false[5], "ten checkpoints": false[10]}
        found.append({"kind": name, "of": repetitions, **numbers})
    return found


def certified(counts: Counts, level: float) -> bool:
    """The decision of `verdicts` alone, without its bounds."""
    return holm_levels([counts.p_values()[0]], level)[0][0]


def _whole(share: float) -> Callable[[np.random.Generator], Counts]:
    """Whole answers, of which the constraint applies to a `share`."""

    def look(draw: np.random.Generator) -> Counts:
        applies = draw.random(400) < share
        return Counts((applies & (draw.random(400) < 0.05)).astype(float), applies.astype(float), 0.05)

    return look


def _by_opportunities(population: Population, prompts: int = 400) -> Callable[[np.random.Generator], Counts]:
    """Rates over steps or calls."""
    return lambda draw: Counts(*population.draw(draw, prompts), population.rate, population.most)


def _mean(draw: np.random.Generator) -> Counts:
    """A mean of a signal in a range, of which 5 % of the answers have the largest value."""
    return Counts((draw.random(400) < 0.05).astype(float), np.ones(400), 0.05, 1.0, mean=True)


KINDS: dict[str, Callable[[np.random.Generator], Counts]] = {
    "whole answers": _whole(1.0),
    "whole answers, 40 % applicable": _whole(0.4),
    "mean": _mean,
    "steps, 5 % long": _by_opportunities(some_long(0.05)),
    "calls, violators 6": _by_opportunities(callers(0.15)),
    "one answer of 1,000 has 100 opportunities": _by_opportunities(long_answers(0.05, 0.001, 100, 1), 1_000),
}
"""Looks at 400 to 1,000 answers of a policy on its threshold."""


def hoeffding_needed(rate: float, threshold: float) -> int | None:
    """Prompts with which Hoeffding's bound (1963) certifies with a probability of 80 % (normal approximation)."""
    spread = ratio.NORMAL[POWER] * math.sqrt(rate * (1 - rate)) + math.sqrt(math.log(1 / LEVEL) / 2)
    return least_number(lambda prompts: rate + spread / math.sqrt(prompts) <= threshold, 10**8)


def needed() -> list[dict[str, float | int | None]]:
    """Prompts that certify with a probability of 80 %, by threshold and rate, alone and as one of three."""
    return [
        {
            "threshold": threshold,
            "rate": rate,
            "exact": prompts_needed(rate, threshold, LEVEL),
            "one of three (Holm)": prompts_needed(rate, threshold, LEVEL / 3),
            "Hoeffding": hoeffding_needed(rate, threshold),
        }
        for threshold in (0.15, 0.05, 0.01, 0.001)
        for rate in (0.0, threshold / 4, threshold / 2, threshold * 0.75)
    ]


POWER_LEVEL = 0.04
"""Error of the first look at confidence 0.95."""


def _steps(draw: np.random.Generator, prompts: int, rate: float) -> tuple[Array, Array]:
    """Episodes of 4 to 40 steps; a quarter of the steps of a bad episode violate."""
    steps = draw.integers(4, 41, prompts)
    bad = draw.random(prompts) < min(1, rate * 4)
    return np.where(bad, draw.binomial(steps, 0.25), 0).astype(float), steps.astype(float)


def _calls(draw: np.random.Generator, prompts: int, rate: float) -> tuple[Array, Array]:
    """Answers of 1 to 10 calls, most of them short."""
    calls = np.minimum(draw.geometric(0.4, prompts), 10)
    return draw.binomial(calls, rate).astype(float), calls.astype(float)


def _bounded(draw: np.random.Generator, prompts: int, rate: float) -> tuple[Array, Array]:
    """A signal from 0 to 1, beta-distributed."""
    return draw.beta(20 * rate, 20 * (1 - rate), prompts), np.ones(prompts)


DESIGNS = {
    "steps 4-40, true d/2, 300 prompts": (_steps, 300, 0.025, 0.05, 40.0),
    "calls 1-10, true d/2, 800 prompts": (_calls, 800, 0.025, 0.05, 10.0),
    "mean 0.45 of at most 0.5, 50 prompts": (_bounded, 50, 0.45, 0.5, 1.0),
}
"""Draw, prompts, true rate, threshold, and most opportunities."""


def power(repetitions: int = LOOKS) -> dict[str, dict[str, float]]:
    """Prompts without a violation that certify 0.01, and shares of certificates, of true rates and at the threshold."""
    found: dict[str, dict[str, float]] = {}
    for share in (1.0, 0.5):
        clean = least_number(partial(_certifies_clean, share))
        violating = 0.01 * share / (1 - 0.01 + 0.01 * share)
        possible = math.ceil(math.log(POWER_LEVEL) / math.log(1 - violating))
        found[f"answers of {share:g} of the longest"] = {"prompts": clean or math.inf, "of any valid test": possible}
    for name, (kind, prompts, rate, threshold, most) in DESIGNS.items():
        draw = np.random.default_rng(0)
        shares = []
        for true in (rate, threshold):
            p_values = [ratio.p_value_met(*kind(draw, prompts, true), most, threshold) for _ in range(repetitions)]
            shares.append(sum(p_value <= POWER_LEVEL for p_value in p_values) / repetitions)
        found[name] = {"power": shares[0], "false": shares[1]}
    return found


def clusters(repetitions: int = LOOKS) -> list[dict[str, Any]]:
    """Shares of false certificates at a rate of 0.05, and of evaluations whose 97.5 % bounds miss it, by design.

    A cluster is one sample, or its prompts are taken to be independent.
    """
    found = []
    for name, design in CLUSTERED.items():
        draw = np.random.default_rng(0)
        counted = dict.fromkeys(("false", "as if independent: false", "upper misses", "lower misses"), 0)
        for _ in range(repetitions):
            violations, sizes = design.draw(draw, 0.05)
            together = Counts(violations, sizes, 0.05, float(sizes.max()))
            counted["false"] += certified(together, POWER_LEVEL)
            prompts = int(sizes.sum())
            counted["as if independent: false"] += p_value_met(int(violations.sum()), prompts, 0.05) <= POWER_LEVEL
            rate = of_unequal(violations, sizes, sizes)
            assert rate is not None
            low, high = rate.bounds(0.025)
            counted["upper misses"] += high < 0.05
            counted["lower misses"] += low > 0.05
        found.append({"design": name} | {kind: count / repetitions for kind, count in counted.items()})
    return found


def _certifies_clean(share: float, prompts: int) -> bool:
    return ratio.p_value_clean(prompts, share, 0.01) <= POWER_LEVEL


def certificates() -> list[dict[str, float]]:
    """`false_certificates` by threshold and correlation."""
    return [
        {"threshold": threshold, "correlation": correlation, **false_certificates(threshold, correlation)}
        for threshold in (0.01, 0.05, 0.15)
        for correlation in (0.0, 0.3, 0.7)
    ]


PARTS: dict[str, Callable[[], Any]] = {
    "false certificates": certificates,
    "three constraints": partial(false_joint_certificates, 3),
    "steps": lambda: {str(prompts): false_step_certificates(prompts) for prompts in (100, 1_000)},
    "needed": needed,
    "power": power,
    "coverage": covered,
    "looks": looks,
    "clusters": clusters,
}


def main(names: Sequence[str]) -> None:
    """Write the named parts of the results, or all."""
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        raise SystemExit(f"Expected parts of the results, but got {', '.join(unknown)}, try {', '.join(PARTS)}.")
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if names else {}
    for name in names or PARTS:
        results[name] = PARTS[name]()
        print(f"{name}:", json.dumps(results[name], indent=2))
    RESULTS.write_text(json.dumps({name: results[name] for name in PARTS}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
