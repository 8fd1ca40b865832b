"""A number that ranks policies: feasible policies first, then by reward."""

from __future__ import annotations

import math

import torch

from lightning_cgrpo.multipliers.units import standard_units
from lightning_cgrpo.objective.measurement import Evaluation
from lightning_cgrpo.objective.objective import Objective
from lightning_cgrpo.verdicts.clustered import ClusteredMean, ClusteredRate
from lightning_cgrpo.verdicts.verdict import fewest_for_all, fewest_prompts

MERIT = "merit"
WORST = -1e3
"""Merit of a policy of which a mean was never observed, because an infinite metric can't be logged."""
CONFIDENCE = 0.95
"""Confidence of the bound on each rate."""


def merit(objective: Objective, evaluation: Evaluation) -> float | None:
    """At least 0 if the upper confidence bounds of all violation rates are within their thresholds, else below 0.

    Below 0, the merit is the worst lower bound of slack (threshold - rate), in `standard_units`. At least 0, merit
    rises with the reward. The unit of a mean is the size of its bound. None without a reward.
    """
    reward = evaluation.metrics.get("reward/mean")
    if reward is None:
        return None
    slack = math.inf
    for name, constraint in objective.constrained.items():
        threshold = constraint.bound.target
        if constraint.bound.of_mean:
            unit = abs(threshold) or 1.0
        else:
            unit = standard_units(torch.tensor([threshold], dtype=torch.float64)).item()
        # A rate that was never observed may be anything.
        unknown = (ClusteredMean if constraint.bound.of_mean else ClusteredRate)(0.0, None, 0, 0.0)
        rate = evaluation.rates.get(name, unknown)
        slack = max(min(slack, (threshold - rate.bounds(1 - CONFIDENCE)[1]) / unit), WORST)
    # From 0 to 2, and float32 keeps four digits of rewards up to hundreds.
    return slack if slack < 0 else 1 + reward / (1 + abs(reward))


def too_few(objective: Objective, prompts: int) -> str | None:
    """A note on rates' thresholds that so few validation prompts can't show to be met, also without a violation."""
    rates = {name: constraint for name, constraint in objective.constrained.items() if not constraint.bound.of_mean}
    needed = {name: fewest_prompts(constraint.bound.target, CONFIDENCE) for name, constraint in rates.items()}
    unshown = {name: count for name, count in needed.items() if count is None or count > prompts}
    if not unshown:
        return None
    texts = []
    for name, count in unshown.items():
        enough = "no number can" if count is None else f"{count} can"
        texts.append(f"{name} {rates[name].bound.sign} {rates[name].bound.threshold:g} ({enough})")
    together = fewest_for_all([c.bound.target for c in rates.values()], CONFIDENCE)
    certify = "" if together is None else f" A certificate of all constraints needs {together} prompts or more."
    return (
        f"{prompts} validation prompts can't show that a policy meets {', '.join(texts)}, even without a violation, so "
        f"no checkpoint counts as feasible; the best is the checkpoint nearest to that, whatever its reward.{certify}"
    )
