"""Plain loops over answers and steps: components of the advantage."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import pstdev

from lightning_cgrpo.objective.objective import Constraint
from tests.generated import Batch, Run
from tests.loops.counts import (
    Values,
    answers,
    applies,
    counted,
    from_number,
    holds,
    is_mean,
    measured,
    own_steps,
    target,
    violates,
)


@dataclass
class Part:
    """A component where it applies: by answer its sum, and its values at the answer's own steps."""

    sums: Values = field(default_factory=dict)
    steps: dict[tuple[int, ...], list[float]] = field(default_factory=dict)

    def add(self, batch: Batch, b: int, g: int, values: list[float], by_step: bool) -> None:
        self.sums[b, g] = sum(values)
        steps = len(own_steps(batch, b, g))
        # The value of a whole answer stands at the last step.
        self.steps[b, g] = values if by_step else [*[0.0] * (steps - 1), *values][:steps]

    def group(self, b: int) -> dict[int, float]:
        return group(self.sums, b)


def components(run: Run, batch: Batch) -> list[Part]:
    """Rewards, and then the constraints on the task's signals."""
    wanted: list[tuple[str, Constraint | None]] = [(name, None) for name in run.objective.rewards]
    wanted += [(constraint.signal or name, constraint) for name, constraint in run.objective.compared.items()]
    parts = [Part() for _ in wanted]
    for part, (signal, constraint) in zip(parts, wanted, strict=True):
        for b, g in answers(batch):
            if applies(batch, signal, constraint or Constraint(), b, g):
                value = gains(batch, signal, constraint, b, g) if constraint else measured(batch, signal, b, g)[0]
                part.add(batch, b, g, value, by_step(batch, signal))
    return parts


def by_step(batch: Batch, signal: str) -> bool:
    return batch.signals[signal].value.dim() == 3


def gains(batch: Batch, signal: str, constraint: Constraint, b: int, g: int) -> list[float]:
    """What a constraint adds to an answer's advantage: one value, or one for each step."""
    values, count, opportunities = measured(batch, signal, b, g)
    chances = [1.0] * len(values) if by_step(batch, signal) else [opportunities]
    wanted = constraint.at_least is not None or constraint.mean_at_least is not None
    of = batch.signals[signal]
    # A value beside its count is a cost of its own, and a number of an answer is violated or not.
    over_chances = of.count is None and of.opportunities is not None
    if constraint.given is not None:
        if not holds(batch, constraint, b, g):
            return [0.0] * len(values)
        over_chances = True
        values = values if by_step(batch, signal) else [count]
    if from_number(constraint):
        values, wanted = [float(violates(batch, constraint, b, value)) for value in values], False
    if over_chances:
        # With a condition, over the batch's own rate.
        rate = target(constraint) if constraint.given is None else batch_rate(batch, signal, constraint)
        violations = values
        if wanted:
            pairs = zip(values, chances, strict=True)
            violations = [-value if is_mean(constraint) else chance - value for value, chance in pairs]
        return [rate * chance - violation for violation, chance in zip(violations, chances, strict=True)]
    return values if wanted else [-value for value in values]


def batch_rate(batch: Batch, signal: str, constraint: Constraint) -> float:
    """The rate of violation over all answers that count; the target if none does."""
    violations, opportunities = 0.0, 0.0
    for b, g in answers(batch):
        count, chances = counted(batch, signal, constraint, b, g)
        violations += count
        opportunities += chances
    return violations / opportunities if opportunities else target(constraint)


def group(values: Values, b: int) -> dict[int, float]:
    """Values of a prompt's answers, by answer."""
    return {at[1]: value for at, value in values.items() if at[0] == b}


def weighted(run: Run, batch: Batch) -> list[tuple[float, Part]]:
    return list(zip(run.component_weights.tolist(), components(run, batch), strict=True))


def spread(values: list[float]) -> float:
    """Population standard deviation, 0 for what rounding leaves."""
    std = pstdev(values) if values else 0.0
    return std if std > 1e-9 else 0.0
