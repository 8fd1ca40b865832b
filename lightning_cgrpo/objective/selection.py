"""Which validated policy of a run is the best, and a number that follows a policy's standing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lightning_cgrpo.objective.bound import Bound
from lightning_cgrpo.objective.chance import chance_of
from lightning_cgrpo.objective.evaluation import Evaluation
from lightning_cgrpo.objective.objective import Objective
from lightning_cgrpo.objective.units import SMALLEST, unit_of
from lightning_cgrpo.objective.verdicts.verdict import PlannedTest, fewest_prompts

MERIT = "merit"
WORST = -1e3
"""Merit of a policy of which a mean was never observed, because an infinite metric can't be logged."""
CONFIDENCE = 0.95
"""Confidence with which a threshold counts as shown."""
CLEAR = 2.0
"""Standard errors of a difference that make a reward lower than another."""
RECENT = 1 / 3
"""Share of a run's validations, the latest, whose policies may be the best."""


@dataclass(frozen=True)
class Standing:
    """The results of a validation that decide which policy is the best.

    Args:
        excess: the largest of the estimated rates above their thresholds, in units of the bounds (`unit_of`); infinity
            if a rate was never observed, minus infinity without constraints.
        reward: mean reward, in double precision.
        error: its standard error.
        ranked: whether the validation has enough prompts to rank policies, see `too_few_to_rank`.
        chance: that `certify` certifies the policy, of a declared look; None without one.
        enough: chance that the look declares.
    """

    excess: float
    reward: float
    error: float
    ranked: bool = True
    chance: float | None = None
    enough: float = 1.0

    @classmethod
    def of(cls, objective: Objective, evaluation: Evaluation) -> Standing | None:
        """The standing of a validated policy; None without a reward."""
        reward = evaluation.metrics.get("reward/mean")
        if reward is None:
            return None
        excess = -math.inf
        for name, constraint in objective.constrained.items():
            if name not in evaluation.rates:
                excess = math.inf  # A rate that was never observed may be anything.
                continue
            above = evaluation.rates[name].rate - constraint.bound.target
            excess = max(excess, above / unit_of(constraint.bound))
        # One prompt says nothing of the error; several that agree have none.
        error = math.inf
        if evaluation.prompts > 1:
            error = evaluation.standard_errors.get("reward/mean", 0.0)
        look = objective.look
        if look is not None:
            chance = chance_of(look, objective.decided, evaluation).whole
            return cls(excess, reward, error, chance=chance, enough=look.chance)
        bounds = {name: constraint.bound for name, constraint in objective.constrained.items()}
        ranked = not too_few_to_rank(bounds, evaluation.prompts)
        return cls(excess, reward, error, ranked)

    @property
    def met(self) -> bool:
        """True if each estimate is within its threshold."""
        return self.excess <= 0

    @property
    def qualified(self) -> bool:
        """True if `certify` certifies with the declared chance; without a look, if each estimate is met."""
        if self.chance is None:
            return self.met
        return self.chance >= self.enough

    @property
    def merit(self) -> float:
        """A number for searches and curves: at least 0 if each estimate is within its threshold, else minus the excess.

        At least 0, merit rises with the reward, and keeps as many of its digits as the metric's type has.
        """
        if not self.met:
            return max(-self.excess, WORST)
        if self.reward >= 0:
            return 1 + self.reward
        return 1 / (1 - self.reward)


class Selection:
    """Chooses the best of a run's policies, one validation after the other.

    The best is the latest policy of the last third of the validations

    1. whose estimates meet all thresholds, and
    2. whose reward is not clearly below the highest reward of a policy that meets them.

    If there is none, or if the validations have too few prompts to rank policies, the best is the last policy: training
    has moved toward the thresholds, so the last is then the best guess. `benchmarks.checkpoints` compares rules.

    With a declared look, (1) is that `certify` certifies the policy with the declared chance. If there is no such
    policy, the best is the policy of the last third that is certified with the highest chance.
    """

    def __init__(self) -> None:
        self.validations = 0
        self.candidate = 0
        """Number of the latest validation, from 1, whose policy was a candidate; 0 for none."""
        self.highest: tuple[float, float] | None = None
        """The highest reward of a policy that qualified, and its standard error."""
        self.likeliest: tuple[int, float] | None = None
        """Number and chance of the policy that is certified with the highest chance of those that may be the best."""

    def chooses(self, policy: Standing) -> bool:
        """Add the next validated policy; whether it is the best so far.

        The new policy is the last, so the best so far is either the new policy or stays.
        """
        self.validations += 1
        if not policy.ranked:
            return True
        if policy.qualified:
            # The highest reward itself is a candidate, so it never turns an older candidate down.
            if self.highest is None or policy.reward > self.highest[0]:
                self.highest = policy.reward, policy.error
            highest_reward, highest_error = self.highest
            difference_error = math.hypot(policy.error, highest_error)
            if policy.reward >= highest_reward - CLEAR * difference_error:
                self.candidate = self.validations
                return True
        # A candidate of the last third stays the best.
        if self.candidate and not self._is_outdated(self.candidate):
            return False
        # Without a candidate, the last policy is the best, or the likeliest to be certified.
        return policy.chance is None or self._note_likeliest(policy.chance)

    def _note_likeliest(self, chance: float) -> bool:
        """Whether the last policy is certified with the highest chance of the last third; noted if it is."""
        if self.likeliest is not None:
            number, highest_chance = self.likeliest
            if chance < highest_chance and not self._is_outdated(number):
                return False
        self.likeliest = self.validations, chance
        return True

    def _is_outdated(self, number: int) -> bool:
        """True if a validation lies before the last third."""
        return self.validations - number >= RECENT * self.validations

    def state_dict(self) -> dict[str, Any]:
        names = ("validations", "candidate", "highest", "likeliest")
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.validations = state["validations"]
        self.candidate = state["candidate"]
        self.highest = state["highest"]
        self.likeliest = state.get("likeliest")


def too_few_to_rank(bounds: Mapping[str, Bound], prompts: int) -> list[str]:
    """Names of rates that so few prompts can't rank: at the threshold, less than one violation is expected in them."""
    names = []
    for name, bound in bounds.items():
        expected_violations = prompts * max(bound.target, SMALLEST)
        if not bound.of_mean and expected_violations < 1:
            names.append(name)
    return names


def too_few(objective: Objective, prompts: int) -> str | None:
    """A note on rates' thresholds that so few validation prompts can't show to be met, also without a violation."""
    bounds = {name: constraint.bound for name, constraint in objective.constrained.items()}
    texts = []
    for name, bound in bounds.items():
        if bound.of_mean:
            continue
        needed = fewest_prompts([PlannedTest(bound.target)], CONFIDENCE)
        if needed is None:
            texts.append(f"{name} {bound} (no number suffices)")
        elif needed > prompts:
            texts.append(f"{name} {bound} ({needed} needed)")
    if not texts:
        return None
    note = f"{prompts} validation prompts are too few to show {', '.join(texts)}."
    if too_few_to_rank(bounds, prompts):
        note += " They can't rank policies either, so the last checkpoint is the best."
    return note
