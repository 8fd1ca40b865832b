"""Plain loops over answers and steps: violations, opportunities and the policy's own signals of an answer."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from lightning_cgrpo.objective.objective import Constraint
from tests.generated import Batch

Values = dict[tuple[int, ...], float]
"""Numbers by answer (b, g), or by step (b, g, t)."""


def answers(batch: Batch) -> Iterator[tuple[int, int]]:
    for b in range(batch.shape[0]):
        for g in range(batch.shape[1]):
            yield b, g


def own_steps(batch: Batch, b: int, g: int) -> list[int]:
    return [t for t in range(batch.shape[2]) if batch.rollouts.mask[b, g, t]]


def applies(batch: Batch, signal: str, constraint: Constraint, b: int, g: int) -> bool:
    """Whether a signal measures an answer, and the answer's prompt is in the constraint's subset."""
    for column, value in (constraint.where or {}).items():
        element = batch.prompts.columns[column][b]
        if str(int(element) if column == "size" else element) != str(value):
            return False
    applicable = batch.signals[signal].applicable
    return applicable is None or bool(applicable[b, g])


def holds(batch: Batch, constraint: Constraint, b: int, g: int) -> bool:
    """Whether an answer meets the constraint's condition, which applies to the answer."""
    if constraint.given is None:
        return True
    return applies(batch, constraint.given, Constraint(), b, g) and measured(batch, constraint.given, b, g)[1] > 0


def measured(batch: Batch, signal: str, b: int, g: int) -> tuple[list[float], float, float]:
    """The values of an answer (one, or one for each step), the occurrences, and the opportunities."""
    of = batch.signals[signal]
    if of.value.dim() == 3:
        values = [float(of.value[b, g, t]) for t in own_steps(batch, b, g)]
        return values, sum(values), len(values)
    value = float(of.value[b, g])
    count = value if of.count is None else float(of.count[b, g])
    return [value], count, 1.0 if of.opportunities is None else float(of.opportunities[b, g])


def from_number(constraint: Constraint) -> bool:
    return constraint.violated_above is not None or constraint.violated_below is not None


def violates(batch: Batch, constraint: Constraint, b: int, value: float) -> bool:
    """Whether a value of an answer to prompt b is beyond the limit, a number or that of the prompt."""
    limit = constraint.violated_below if constraint.violated_above is None else constraint.violated_above
    if isinstance(limit, dict):
        limit = float(batch.prompts.columns[limit["column"]][b])
    return value < limit if constraint.violated_above is None else value > limit


def counted(batch: Batch, name: str, constraint: Constraint, b: int, g: int) -> tuple[float, float]:
    """Violations and opportunities of an answer, or the sum and the number of a mean's values."""
    signal = constraint.signal or name
    if signal in ("kl", "entropy"):
        mean = own_mean(batch, signal, b, g)
        count, opportunities = (0.0, 0.0) if mean is None else (mean, 1.0)
    elif not (applies(batch, signal, constraint, b, g) and holds(batch, constraint, b, g)):
        return 0.0, 0.0
    else:
        values, count, opportunities = measured(batch, signal, b, g)
        if from_number(constraint):
            return float(sum(violates(batch, constraint, b, value) for value in values)), float(len(values))
    if constraint.mean_at_most is not None:
        return count, opportunities
    if constraint.mean_at_least is not None:
        return -count, opportunities
    return opportunities - count if constraint.at_least is not None else count, opportunities


def own_mean(batch: Batch, signal: str, b: int, g: int) -> float | None:
    """The mean over an answer's steps of what the policy computed there; None without steps."""
    values = batch.examples.targets[signal]
    steps = own_steps(batch, b, g)
    if values.dim() == 2:
        row = b * batch.shape[1] + g
        return fmean(float(values[row, t]) for t in steps) if steps else None
    # Units are single steps, answer after answer.
    first = sum(len(own_steps(batch, *answer)) for answer in answers(batch) if answer < (b, g))
    return fmean(values[first : first + len(steps)].tolist()) if steps else None


def target(constraint: Constraint, update: int = 10**6, aim: bool = False) -> float:
    """The largest allowed rate of violation (or mean) in an update."""
    end = next(x for x in (constraint.at_most, constraint.at_least, constraint.mean_at_most, constraint.mean_at_least)
               if x is not None)  # fmt: skip
    threshold = end
    if constraint.over is not None and update < constraint.over:
        threshold = constraint.start + (end - constraint.start) * update / constraint.over
    if aim and threshold == end and constraint.aim is not None:
        threshold = constraint.aim
    if constraint.at_least is not None:
        return 1 - threshold
    return -threshold if constraint.mean_at_least is not None else threshold


def is_mean(constraint: Constraint) -> bool:
    return constraint.mean_at_most is not None or constraint.mean_at_least is not None
