"""Plain loops over answers: how far rates and means exceed their targets in each dual step."""

from __future__ import annotations

import math
from collections.abc import Iterator

from lightning_cgrpo.objective.objective import Constraint, Objective
from tests.generated import Batch
from tests.loops.components import spread
from tests.loops.counts import answers, counted, is_mean, target


def dual_steps(
    objective: Objective, batches: list[Batch], every: int, margin: float, standard: bool
) -> Iterator[dict[str, float | None]]:
    """In each dual step, how far each rate exceeds its target; None where nothing was observed."""
    constraints = objective.constrained
    by_name = [steps_of(name, of, batches, every, margin, standard) for name, of in constraints.items()]
    for step in zip(*by_name, strict=True):
        yield dict(zip(constraints, step, strict=True))


def steps_of(
    name: str, constraint: Constraint, batches: list[Batch], every: int, margin: float, standard: bool
) -> Iterator[float | None]:
    """The dual steps of one constraint."""
    violations = opportunities = squares = freedom = 0.0
    observed = 0
    for update, batch in enumerate(batches):
        pairs = {at: counted(batch, name, constraint, *at) for at in answers(batch)}
        violations += sum(value for value, _ in pairs.values())
        opportunities += sum(number for _, number in pairs.values())
        observed += sum(number > 0 for _, number in pairs.values())
        fresh = within_groups(pairs, batch.shape[0])
        squares, freedom = 0.95 * squares + fresh[0], 0.95 * freedom + fresh[1]
        if (update + 1) % every:
            continue
        if (constraint.where is not None or constraint.given is not None) and opportunities < 30:
            yield None  # counts of some answers wait until there are enough
            continue
        rate = violations / opportunities if opportunities else None
        goal = inside(name, constraint, observed, (squares, freedom), update, margin)
        yield exceeded(name, constraint, rate, goal, (squares, freedom), update, standard)
        violations = opportunities = 0.0


def within_groups(pairs: dict[tuple[int, int], tuple[float, float]], prompts: int) -> tuple[float, float]:
    """Squares of the deviations of answers' means from their groups' means, and degrees of freedom."""
    squares, freedom = 0.0, 0.0
    for b in range(prompts):
        means = [value / number for (row, _), (value, number) in pairs.items() if row == b and number > 0]
        if means:
            squares += len(means) * spread(means) ** 2
            freedom += len(means) - 1
    return squares, freedom


def inside(
    name: str, constraint: Constraint, observed: int, spread_of_mean: tuple[float, float], update: int, margin: float
) -> float:
    """The target: by so many standard errors of the answers so far within the threshold."""
    goal = target(constraint, update, aim=True)
    if margin == 0 or observed == 0:
        return goal
    if not is_mean(constraint):
        low, high = 0.0, goal
        for _ in range(100):
            middle = (low + high) / 2
            error = math.sqrt(middle * (1 - middle) / observed)
            low, high = (middle, high) if middle + margin * error < goal else (low, middle)
        return high
    squares, freedom = spread_of_mean
    if (constraint.signal or name) == "kl" or squares == 0:
        return goal
    return goal - margin * math.sqrt(squares / freedom / observed)


def exceeded(
    name: str,
    constraint: Constraint,
    rate: float | None,
    goal: float,
    spread_of_mean: tuple[float, float],
    update: int,
    standard: bool,
) -> float | None:
    """(rate - target) / unit."""
    if rate is None:
        return None
    in_force = target(constraint, update)
    if not is_mean(constraint):
        widest = max(p * (1 - p) for p in (in_force, target(constraint, 10**9)))
        return (rate - goal) / (math.sqrt(widest) if standard else 1.0)
    if (constraint.signal or name) == "kl":
        return max(-10.0, min(10.0, (rate - goal) / abs(in_force)))
    squares, freedom = spread_of_mean
    if squares == 0:
        return None
    return max(-10.0, min(10.0, (rate - goal) / math.sqrt(squares / freedom)))
