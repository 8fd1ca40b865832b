"""Twelve bandits of the family of `benchmarks.bandits`, drawn by one seed before any setting was tuned on them.

Each problem has one trait of the 26. Numbers of contexts, arms, constraints and answers, the learning rate and the
thresholds are random. The first draw of the seed was taken. One trait was mended before any run, because its safest
policy earned more than its best: both rates of a pair have the same threshold.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.bandits import Problem, between, drawn, rare

SEED = 58


def fresh_problems() -> dict[str, Problem]:
    """The twelve problems by name."""
    draw = np.random.default_rng(SEED)
    return {f"fresh: {trait}": _with_trait(trait, draw) for trait in TRAITS}


TRAITS = (
    "one constraint",
    "three constraints",
    "a rare event",
    "noisy reward",
    "small reward",
    "heavy-tailed mean",
    "step rate",
    "applies to some",
    "shared draw",
    "a pair",
    "costly start",
    "costs rise",
)


def _with_trait(trait: str, draw: np.random.Generator) -> Problem:
    """A problem of random size with one trait."""
    contexts, arms = int(draw.integers(3, 17)), int(draw.integers(3, 13))
    constraints = 3 if trait == "three constraints" else 2 if trait in ("applies to some", "shared draw") else 1
    shares = draw.uniform(0.25, 0.75, constraints).tolist()
    answers = int(draw.choice((4, 8, 16, 32)))
    lr = float(np.exp(draw.uniform(np.log(0.02), np.log(0.2))))
    prompts, updates = int(draw.integers(64, 513)) // answers, int(draw.integers(400, 1001))
    size = {"contexts": contexts, "arms": arms, "constraints": constraints}
    run = {"lr": lr, "prompts": prompts, "answers": answers, "updates": updates}
    problem = drawn(int(draw.integers(2**31)), *shares, **size, **run)
    extent = draw.random()  # of the trait, from its mildest to its strongest
    if trait == "a rare event":
        seed, d = int(draw.integers(2**31)), 0.02 * 0.1**extent
        return rare(seed, (d,), 0.0, 0.2, contexts=contexts, arms=arms, **run)
    if trait == "noisy reward":
        return replace(problem, noise=1 + 2 * extent)
    if trait == "small reward":
        return replace(problem, rewards=problem.rewards * 0.2 * 0.1**extent)
    if trait == "heavy-tailed mean":
        return replace(problem, heavy=True)
    if trait == "step rate":
        lengths = draw.integers(2, 41, (contexts, arms)).astype(float)
        thresholds = between(problem.rewards, problem.costs, *shares, lengths=lengths)
        return replace(problem, lengths=lengths, excess=True, thresholds=thresholds)
    if trait == "applies to some":
        return replace(problem, applies=(1.0, 0.5 * 0.1**extent))
    if trait == "shared draw":
        return replace(problem, draws="shared")
    if trait == "a pair":
        costs = np.concatenate([problem.costs, 1 - problem.costs])
        d = 0.6 - 0.08 * extent
        return replace(problem, costs=costs, thresholds=(d, d), draws="opposite")
    if trait == "costly start":
        return replace(problem, start=4 * (1 + extent) * problem.costs[0])
    if trait == "costs rise":
        return replace(problem, before=problem.costs / (1 + 2 * extent))
    return problem
