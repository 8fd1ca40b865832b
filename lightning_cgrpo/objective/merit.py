"""A number that ranks policies: feasible policies first, then by reward."""

from __future__ import annotations

import math

import torch

from lightning_cgrpo.objective.bound import Bound
from lightning_cgrpo.objective.measurement import Evaluation
from lightning_cgrpo.objective.objective import Objective
from lightning_cgrpo.objective.units import standard_units
from lightning_cgrpo.objective.verdicts.verdict import PlannedTest, fewest_prompts

MERIT = "merit"
WORST = -1e3
"""Merit of a policy of which a mean was never observed, because an infinite metric can't be logged."""
CONFIDENCE = 0.95
"""Confidence with which a threshold counts as shown."""


def merit(objective: Objective, evaluation: Evaluation) -> float | None:
    """At least 0 if each estimated rate of violation is within its threshold, else the worst slack, below 0.

    Slack is (threshold - rate) in the bound's `unit`. At least 0, merit rises with the reward, and keeps as many of its
    digits as the metric's type has. None without a reward.
    """
    reward = evaluation.metrics.get("reward/mean")
    if reward is None:
        return None
    slack = math.inf
    for name, constraint in objective.constrained.items():
        if name not in evaluation.rates:
            return WORST  # A rate that was never observed may be anything.
        slack = min(slack, (constraint.bound.target - evaluation.rates[name].rate) / unit(constraint.bound))
    if slack < 0:
        return max(slack, WORST)
    return 1 + reward if reward >= 0 else 1 / (1 - reward)


def unit(bound: Bound) -> float:
    """The unit in which violations are compared: `standard_units` of a rate, the size of a mean's bound."""
    if bound.of_mean:
        return abs(bound.target) or 1.0
    return standard_units(torch.tensor([bound.target], dtype=torch.float64)).item()


def too_few(objective: Objective, prompts: int) -> str | None:
    """A note on rates' thresholds that so few validation prompts can't show to be met, also without a violation."""
    rates = {name: constraint for name, constraint in objective.constrained.items() if not constraint.bound.of_mean}
    needed = {name: fewest_prompts([PlannedTest(of.bound.target)], CONFIDENCE) for name, of in rates.items()}
    unshown = {name: count for name, count in needed.items() if count is None or count > prompts}
    if not unshown:
        return None
    texts = [
        f"{name} {rates[name].bound} ({'no number suffices' if count is None else f'{count} needed'})"
        for name, count in unshown.items()
    ]
    return (
        f"{prompts} validation prompts are too few to show {', '.join(texts)}. Of undecided policies, the latest is "
        "the best checkpoint."
    )
