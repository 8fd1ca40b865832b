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


def declared_constraints(objective: Objective) -> Constraints:
    """The constraints before any measurement."""
    constraints = objective.constraints
    return {name: MeasuredConstraint.declared(name, constraint) for name, constraint in constraints.items()}


def measurement_of(objective: Objective, evaluation: Evaluation, update: int) -> Measurement:
    """An evaluation's reward with its standard error, and each constraint's value with its interval."""
    constraints = {}
    for name, rate in evaluation.rates.items():
        constraints[name] = MeasuredConstraint.of(name, objective.constraints[name], rate)
    reward = Reward(evaluation.metrics.get("reward/mean"), evaluation.standard_errors.get("reward/mean"))
    measurement = Measurement(update, reward, constraints, evaluation.prompts, evaluation.answers)
    if objective.look is None:
        return measurement
    chance = chance_of(objective.look, objective.decided, evaluation)
    return replace(measurement, targets=shown_targets(objective, evaluation), chance=chance)


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
        return [self.by_update[update] for update in sorted(self.by_update)]


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
        scored = {}
        for rank, (measurement, score) in self.validated.scored.items():
            scored[rank] = {**measurement.as_json(), "score": score}
        by_update = self.validated.by_update
        return {
            "measured": {key: measurement.as_json() for key, measurement in self.measured.items() if key in KEPT},
            "scored": scored,
            "validated": {update: measurement.as_json() for update, measurement in by_update.items()},
            "rewards": self.rewards,
        }

    @classmethod
    def read(cls, state: Mapping[str, Any], constraints: Constraints, rewards: dict[str, float]) -> KeptMeasurements:
        """From `state`, as far as they are of the same reward."""
        kept = cls(rewards=rewards)
        for rank, content in state.get("scored", {}).items():
            kept.validated.scored[rank] = (Measurement.read(content, constraints), content["score"])
        if state.get("rewards") not in (None, rewards):  # Another reward is not compared with this one.
            return kept
        for key, content in state.get("measured", {}).items():
            kept.measured[key] = Measurement.read(content, constraints)
        for update, content in state.get("validated", {}).items():
            kept.validated.by_update[update] = Measurement.read(content, constraints)
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
        for name, constraint in declared_constraints(objective).items():
            constraints[name] = replace(constraint, value=self.mean(constraint.bound.tag(name)))
        weights = {}
        for name in objective.weight_names:
            weight = self.mean(f"multiplier/{name}")
            if weight is not None:
                weights[name] = weight
        last_update, _ = self._logged[-1]
        return Measurement(last_update, Reward(self.mean("reward/mean")), constraints, weights=weights)
