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
    counts = dict.fromkeys(objective.constrained, (0.0, 0.0))
    spreads = dict.fromkeys(objective.constrained, (0.0, 0.0))
    observed = dict.fromkeys(objective.constrained, 0)
    for update, batch in enumerate(batches):
        for name, constraint in objective.constrained.items():
            pairs = {at: counted(batch, name, constraint, *at) for at in answers(batch)}
            violations, opportunities = counts[name]
            counts[name] = (
                violations + sum(pair[0] for pair in pairs.values()),
                opportunities + sum(pair[1] for pair in pairs.values()),
            )
            observed[name] += sum(number > 0 for _, number in pairs.values())
            squares, freedom = within_groups(pairs, batch.shape[0])
            spreads[name] = (0.95 * spreads[name][0] + squares, 0.95 * spreads[name][1] + freedom)
        targets = {
            name: inside(name, constraint, observed[name], spreads[name], update, margin)
            for name, constraint in objective.constrained.items()
        }
        if (update + 1) % every == 0:
            step: dict[str, float | None] = {}
            for name, constraint in objective.constrained.items():
                violations, opportunities = counts[name]
                of_some = constraint.where is not None or constraint.given is not None
                if of_some and opportunities < 30:
                    step[name] = None  # counts of some answers wait until there are enough
                    continue
                counts[name] = (0.0, 0.0)
                rate = violations / opportunities if opportunities else None
                step[name] = exceeded(name, constraint, rate, targets[name], spreads[name], update, standard)
            yield step


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
