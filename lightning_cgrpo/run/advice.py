"""Lines about a run that lost its reward to a constraint, or holds a constraint short of its threshold."""

from __future__ import annotations

import math
from collections.abc import Iterator

from lightning_cgrpo.objective.measured_constraint import MeasuredConstraint
from lightning_cgrpo.run.record import Measurement, RunRecord

SURE = 2.0
"""Standard errors by which a reward ends below its start, to be told."""


def advice(record: RunRecord) -> list[str]:
    """A line per held constraint, and a line if the reward ended below its start beyond its error."""
    return [*_held(record), *_lost(record)]


def _held(record: RunRecord) -> Iterator[str]:
    for name, reached in (record.held or {}).items():
        bound = record.constraints[name].bound
        yield (
            f"{name} {bound} was not met and did not get better, so training holds what was reached: try "
            f"{bound.declared_at(reached)}."
        )


def _lost(record: RunRecord) -> Iterator[str]:
    before, after = record.measured.get("before"), _final(record)
    # Fixed weights hold nothing, because no one enforces their thresholds.
    if record.held is None or before is None or before.reward.value is None or after is None:
        return
    first, last = before.reward, after.reward
    assert first.value is not None and last.value is not None
    errors = [of.error for of in (first, last) if of.error is not None]
    # Not sure, unknown, or not a number.
    if not errors or not first.value - last.value > SURE * math.hypot(*errors):
        return
    weights = record.measured["end"].weights if "end" in record.measured else None
    constraints = {name: weight for name, weight in (weights or {}).items() if name != "reward"}
    if weights is None or not constraints:
        return
    # The constraint that pulled furthest: its weight times its rate's move towards the bound, in units of the bound.
    pulls = {}
    for name, weight in constraints.items():
        pulls[name] = weight * _moved(record.constraints[name], before.value(name), after.value(name)), weight
    dearest = record.constraints[max(pulls, key=lambda name: pulls[name])]
    line = f"The reward fell from {first.value:.3g} to {last.value:.3g}. {dearest.name} {dearest.bound} pulled "
    line += f"furthest, with a weight of {constraints[dearest.name]:.2f} beside the reward's {weights['reward']:.2f}. "
    remedies = [_kept(record, dearest, first.value - SURE * math.hypot(*errors)), _schedule(record, dearest)]
    known = [remedy for remedy in remedies if remedy is not None]
    yield f"{line}Try {', '.join([*known, 'or more updates' if known else 'more updates'])}."


def _moved(constraint: MeasuredConstraint, first: float | None, last: float | None) -> float:
    """Move of a constraint's value towards its bound since the start, in units of the bound; 0 if it moved away.

    1 where one of both values is unknown.
    """
    from lightning_cgrpo.objective.units import unit_of  # with torch, which a report does without

    if first is None or last is None:
        return 1.0
    bound = constraint.bound
    return max(0.0, (bound.violation(first) - bound.violation(last)) / unit_of(bound))


def _final(record: RunRecord) -> Measurement | None:
    """The last measurement of the reward: a validation, which has an error, else the end of training."""
    for key in ("last", "end"):
        if key in record.measured and record.measured[key].reward.value is not None:
            return record.measured[key]
    return None


def _kept(record: RunRecord, constraint: MeasuredConstraint, least: float) -> str | None:
    """The tightest threshold that a validation reached with at least this reward, as a declaration."""
    bound = constraint.bound
    reached = []
    for validation in record.validations:
        value, reward = validation.value(constraint.name), validation.reward.value
        if value is not None and reward is not None and reward >= least and not bound.met(value):
            reached.append(value)
    if not reached:
        return None
    tightest = max(reached) if bound.lower else min(reached)
    return f"{bound.declared_at(tightest)}, which was reached without this loss"


def _schedule(record: RunRecord, constraint: MeasuredConstraint) -> str | None:
    """A schedule from the first measured rate over two thirds of the run; None if that rate met the bound."""
    bound = constraint.bound
    first = record.measured["before"].value(constraint.name)
    if first is None or bound.met(first):
        return None
    over = max(1, round(2 / 3 * (record.asked or record.updates or 300)))
    start = bound.declared_at(first).partition(": ")[2]
    return f"a schedule (start: {start}, over: {over})"
