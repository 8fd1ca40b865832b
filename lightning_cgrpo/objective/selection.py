"""Which validated policy of a run is the best: the latest that misses no threshold, of nearly the highest reward."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from lightning_cgrpo.objective.measurement import Evaluation
from lightning_cgrpo.objective.objective import Objective

CLEAR = 2.0
"""Standard errors of a difference that make a reward lower than another."""


@dataclass(frozen=True)
class Standing:
    """What a validation says of a policy, as far as it decides which policy is the best.

    Args:
        missed: whether the 95 % interval of a constraint is beyond its threshold.
        met: whether each estimate is within its threshold.
        reward: mean reward.
        error: its standard error.
    """

    missed: bool
    met: bool
    reward: float
    error: float

    @classmethod
    def of(cls, objective: Objective, evaluation: Evaluation) -> Standing | None:
        """The standing of a validated policy; None without a reward."""
        reward = evaluation.metrics.get("reward/mean")
        if reward is None:
            return None
        missed = False
        met = True
        for name, constraint in objective.constrained.items():
            rate = evaluation.rates.get(name)
            if rate is None:  # never observed
                met = False
                continue
            met = met and rate.rate <= constraint.bound.target
            missed = missed or constraint.bound.side(*constraint.bound.interval(rate)) == "missed"
        # One prompt says nothing of the error; several that agree have none.
        error = evaluation.standard_errors.get("reward/mean", 0.0) if evaluation.prompts > 1 else math.inf
        return cls(missed, met, reward, error)


class Selection:
    """Chooses the best of a run's policies, one validation after the other.

    The best is the latest policy that misses no threshold and whose reward is not clearly below the highest reward of
    the policies whose estimates met all thresholds. If every policy misses a threshold, it is the latest.

    A policy that is undecided by few prompts counts as one that misses nothing: training has moved toward the
    thresholds, so the latest is then the best guess. `benchmarks.checkpoints` compares rules.
    """

    def __init__(self) -> None:
        self.some_miss_nothing = False
        self.highest: tuple[float, float] | None = None
        """The highest reward of a policy that met all thresholds, and its standard error."""

    def chooses(self, policy: Standing) -> bool:
        """Add the next validated policy; whether it is the best so far.

        The new policy is the latest, so the best so far is either the new policy or stays.
        """
        if policy.missed:
            return not self.some_miss_nothing
        first = not self.some_miss_nothing
        self.some_miss_nothing = True
        if policy.met and (self.highest is None or policy.reward > self.highest[0]):
            self.highest = policy.reward, policy.error
        if first or self.highest is None:
            return True
        reward, error = self.highest
        return policy.reward >= reward - CLEAR * math.hypot(policy.error, error)

    def state_dict(self) -> dict[str, Any]:
        return {"some_miss_nothing": self.some_miss_nothing, "highest": self.highest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.some_miss_nothing = state["some_miss_nothing"]
        self.highest = state["highest"]
