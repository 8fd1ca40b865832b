"""A number that ranks policies: feasible policies first, then by reward."""

from __future__ import annotations

import math

from lightning_cgrpo.objective.measurement import Evaluation
from lightning_cgrpo.objective.objective import Objective
from lightning_cgrpo.verdicts.clustered import ClusteredRate

MERIT = "merit"
CONFIDENCE = 0.95
"""Of the bound on each rate."""
LEAST_RATE = 0.001
"""Smaller thresholds share this threshold's unit, because a threshold of 0 has none."""


def merit(objective: Objective, evaluation: Evaluation) -> float | None:
    """At least 0 if the upper confidence bounds of all violation rates are within their thresholds, else below 0.

    Below 0, the merit is the worst lower bound of slack (threshold - rate), in standard units: the standard deviation
    sqrt(d (1 - d)) of one answer at the threshold d. At least 0, merit rises with the reward. None without a reward.
    """
    reward = evaluation.metrics.get("reward/mean")
    if reward is None:
        return None
    slack = math.inf
    for name, constraint in objective.constrained.items():
        threshold = constraint.max_violation_rate
        # A rate that was never observed may be anything.
        rate = evaluation.rates.get(name, ClusteredRate(0.0, None, 0, 0.0))
        unit = math.sqrt(max(threshold, LEAST_RATE) * (1 - threshold))
        slack = min(slack, (threshold - rate.bounds(1 - CONFIDENCE)[1]) / unit)
    # From 0 to 2, and float32 keeps four digits of rewards up to hundreds.
    return slack if slack < 0 else 1 + reward / (1 + abs(reward))
