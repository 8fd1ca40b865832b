"""Error rates of verdicts, simulated with known rates, beside methods that fail or waste prompts.

    python -m benchmarks.verdicts            # half a minute; writes benchmarks/results/verdicts.json

Answers to a prompt are alike: each prompt has a rate of its own, beta-distributed with the given correlation of two
answers to the same prompt. A false certificate is a certificate of a policy whose rate is the threshold exactly, the
hardest case.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_cgrpo.objective.verdicts import ratio
from lightning_cgrpo.objective.verdicts.binomial import POWER, least, p_value_met, prompts_needed
from lightning_cgrpo.objective.verdicts.clustered import ClusteredRate
from lightning_cgrpo.objective.verdicts.holm import holm_levels

REPETITIONS = 10_000
LEVEL = 0.05
PROMPTS, ANSWERS = 1_000, 8
STEPS = 20
"""Largest number of steps of an episode."""
CANDIDATES = 20
"""Checkpoints of which validation selects one."""
RESULTS = Path(__file__).parent / "results" / "verdicts.json"

Array = NDArray[Any]


def answers(draw: np.random.Generator, rate: float, correlation: float, shape: tuple[int, ...]) -> Array:
    """Violations among the answers to each prompt, of any shape; the rates of two answers correlate."""
    if correlation == 0:
        return draw.binomial(ANSWERS, rate, shape)
    concentration = 1 / correlation - 1
    return draw.binomial(ANSWERS, draw.beta(rate * concentration, (1 - rate) * concentration, shape))


def most_certified(prompts: int, threshold: float, level: float) -> int:
    """The largest number of violations that is certified; -1 if none is."""
    violations = -1
    while p_value_met(violations + 1, prompts, threshold) <= level:
        violations += 1
    return violations


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


def hoeffding_needed(rate: float, threshold: float) -> int | None:
    """Prompts with which Hoeffding's bound (1963) certifies with a probability of 80 % (normal approximation)."""
    spread = ratio.NORMAL[POWER] * math.sqrt(rate * (1 - rate)) + math.sqrt(math.log(1 / LEVEL) / 2)
    return least(lambda prompts: rate + spread / math.sqrt(prompts) <= threshold, 10**8)


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


def main() -> None:
    print(f"False certificates at a rate that is the threshold, {PROMPTS:,} prompts, {REPETITIONS:,} repetitions:")
    certificates = []
    for threshold in (0.01, 0.05, 0.15):
        for correlation in (0.0, 0.3, 0.7):
            shares = false_certificates(threshold, correlation)
            certificates.append({"threshold": threshold, "correlation": correlation, **shares})
            print(f"  d {threshold:g}, correlation {correlation:g}:", _line(shares))
    joint = false_joint_certificates(3)
    print("  any of three constraints:", _line(joint))
    steps = {prompts: false_step_certificates(prompts) for prompts in (100, 1_000)}
    for prompts, shares in steps.items():
        print(f"  steps, {prompts:,} episodes:", _line(shares))
    counts = needed()
    for row in counts:
        print("  needed:", row)
    results = {"false certificates": certificates, "three constraints": joint, "steps": steps, "needed": counts}
    RESULTS.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


def _line(shares: dict[str, float]) -> str:
    return ", ".join(f"{method} {share:.2%}" for method, share in shares.items())


if __name__ == "__main__":
    main()
