"""A run's measurements of its policy: before training, by each validation, by the best one, and at the end."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from lightning_cgrpo.objective.chance import chance_of, shown_targets
from lightning_cgrpo.objective.evaluation import Evaluation
from lightning_cgrpo.objective.measured_constraint import MeasuredConstraint
from lightning_cgrpo.objective.objective import Objective
from lightning_cgrpo.run.record import Constraints, Measurement, Reward

END = 1 / 8
"""Share of the updates over which the values at the end of training are means."""
KEPT = ("before", "last")
"""Measurements that a resumed run continues with."""
Metrics = Mapping[str, float]


def declared(objective: Objective) -> Constraints:
    """The constraints before any measurement."""
    return {name: MeasuredConstraint.declared(name, of) for name, of in objective.constraints.items()}


def measured(objective: Objective, evaluation: Evaluation, update: int) -> Measurement:
    """An evaluation's reward with its standard error, and each constraint's value with its interval."""
    constraints = {}
    for name, rate in evaluation.rates.items():
        constraints[name] = MeasuredConstraint.of(name, objective.constraints[name], rate)
    reward, error = (found.get("reward/mean") for found in (evaluation.metrics, evaluation.standard_errors))
    found = Measurement(update, Reward(reward, error), constraints, evaluation.prompts, evaluation.answers)
    if objective.look is None:
        return found
    chance = chance_of(objective.look, objective.decided, evaluation)
    return replace(found, targets=shown_targets(objective, evaluation), chance=chance)


@dataclass
class Validated:
    """Validations of a run, by what later finds them again.

    Args:
        scored: with the monitored metric, by the number that ranks checkpoints.
        by_update: all.
    """

    scored: dict[float, tuple[Measurement, float]] = field(default_factory=dict)
    by_update: dict[int, Measurement] = field(default_factory=dict)

    def add(self, measurement: Measurement, rank: float | None, score: float | None) -> None:
        """Keep a validation; without a rank no checkpoint is chosen by it."""
        self.by_update[measurement.update] = measurement
        if rank is not None and score is not None:
            # Of equal validations, the first has the checkpoint.
            self.scored.setdefault(rank, (measurement, score))

    @property
    def all(self) -> list[Measurement]:
        return [of for _, of in sorted(self.by_update.items())]


@dataclass
class KeptMeasurements:
    """The measurements that a checkpoint keeps, from which a resumed run continues.

    Args:
        measured: of `KEPT`.
        rewards: weights of the reward's signals, by which a resumed run knows its reward.
    """

    measured: dict[str, Measurement] = field(default_factory=dict)
    validated: Validated = field(default_factory=Validated)
    rewards: dict[str, float] | None = None

    def state(self) -> dict[str, Any]:
        """Plain containers, for a checkpoint."""
        validated = self.validated
        scored = {rank: {**of.as_json(), "score": score} for rank, (of, score) in validated.scored.items()}
        return {
            "measured": {key: of.as_json() for key, of in self.measured.items() if key in KEPT},
            "scored": scored,
            "validated": {update: of.as_json() for update, of in validated.by_update.items()},
            "rewards": self.rewards,
        }

    @classmethod
    def read(cls, state: Mapping[str, Any], constraints: Constraints, rewards: dict[str, float]) -> KeptMeasurements:
        """From `state`, as far as they are of the same reward."""
        kept = cls(rewards=rewards)
        for rank, of in state.get("scored", {}).items():
            kept.validated.scored[rank] = Measurement.read(of, constraints), of["score"]
        if state.get("rewards") in (None, rewards):  # Another reward is not compared with this one.
            kept.measured = {key: Measurement.read(of, constraints) for key, of in state.get("measured", {}).items()}
            for update, of in state.get("validated", {}).items():
                kept.validated.by_update[update] = Measurement.read(of, constraints)
        return kept


class LastUpdates:
    """The logged metrics of the last part of training, as far as this process trained it."""

    def __init__(self) -> None:
        self._logged: deque[tuple[int, Metrics]] = deque()

    def __bool__(self) -> bool:
        return bool(self._logged)

    def add(self, update: int, metrics: Metrics) -> bool:
        """Keep an update's metrics; False without new ones."""
        if not metrics or (self._logged and metrics is self._logged[-1][1]):
            return False
        self._logged.append((update, metrics))
        while self._logged[0][0] <= update * (1 - END):
            self._logged.popleft()
        return True

    def mean(self, tag: str) -> float | None:
        """The mean of a tag over the updates that logged it."""
        values = [metrics[tag] for _, metrics in self._logged if tag in metrics]
        return sum(values) / len(values) if values else None

    def measured(self, objective: Objective) -> Measurement:
        """The means of the reward, the constraints and the weights."""
        constraints = {}
        for name, constraint in declared(objective).items():
            constraints[name] = replace(constraint, value=self.mean(constraint.bound.tag(name)))
        means = {name: self.mean(f"multiplier/{name}") for name in objective.weight_names}
        weights = {name: weight for name, weight in means.items() if weight is not None}
        return Measurement(self._logged[-1][0], Reward(self.mean("reward/mean")), constraints, weights=weights)
