"""A number that ranks policies: feasible policies first, then by reward."""

from __future__ import annotations

import math

import torch

from lightning_cgrpo.objective.bound import Bound
from lightning_cgrpo.objective.measurement import Evaluation
from lightning_cgrpo.objective.objective import Objective
from lightning_cgrpo.objective.units import standard_units
from lightning_cgrpo.objective.verdicts.clustered import ClusteredMean, ClusteredRate
from lightning_cgrpo.objective.verdicts.verdict import PlannedTest, fewest_prompts

MERIT = "merit"
WORST = -1e3
"""Merit of a policy of which a mean was never observed, because an infinite metric can't be logged."""
CONFIDENCE = 0.95
"""Confidence of the bound on each rate."""


def merit(objective: Objective, evaluation: Evaluation) -> float | None:
    """At least 0 if the upper confidence bounds of all violation rates are within their thresholds, else below 0.

    Below 0, the merit is the worst lower bound of slack (threshold - rate), in the bound's `unit`. At least 0, merit
    rises with the reward. None without a reward.
    """
    reward = evaluation.metrics.get("reward/mean")
    if reward is None:
        return None
    slack = math.inf
    for name, constraint in objective.constrained.items():
        # A rate that was never observed may be anything.
        unknown = (ClusteredMean if constraint.bound.of_mean else ClusteredRate)(0.0, None, 0, 0.0)
        rate = evaluation.rates.get(name, unknown)
        excess = rate.bounds(1 - CONFIDENCE)[1] - constraint.bound.target
        slack = max(min(slack, -excess / unit(constraint.bound)), WORST)
    # From 0 to 2, and float32 keeps four digits of rewards up to hundreds.
    return slack if slack < 0 else 1 + reward / (1 + abs(reward))


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
        f"{prompts} validation prompts are too few to show {', '.join(texts)}. The best checkpoint is then the nearest "
        "to the thresholds, not the feasible one with the highest reward."
    )
