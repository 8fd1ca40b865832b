"""Lines about a run that lost its reward to a constraint, or holds a constraint short of its threshold."""

from __future__ import annotations

import math
from collections.abc import Iterator

from lightning_cgrpo.objective.measured_constraint import MeasuredConstraint
from lightning_cgrpo.run.record import Measurement, RunRecord

SURE = 2.0
"""A reward counts as lost if it ends this many standard errors below its start."""


def advice(record: RunRecord) -> list[str]:
    """A line per held constraint, and a line if the reward ended below its start beyond its error."""
    return [*_held_constraints(record), *_lost_reward(record)]


def _held_constraints(record: RunRecord) -> Iterator[str]:
    for name, reached in (record.held or {}).items():
        bound = record.constraints[name].bound
        yield (
            f"{name} {bound} was not met and did not get better, so training holds what was reached: try "
            f"{bound.declared_at(reached)}."
        )


def _lost_reward(record: RunRecord) -> Iterator[str]:
    before = record.measured.get("before")
    after = _final_measurement(record)
    # Fixed weights hold nothing, because no one enforces their thresholds.
    if record.held is None or before is None or before.reward.value is None or after is None:
        return

    # Was the reward lost beyond its error? Not if the error is unknown, or a value is not a number.
    first = before.reward
    last = after.reward
    assert first.value is not None and last.value is not None
    errors = [reward.error for reward in (first, last) if reward.error is not None]
    if not errors:
        return
    margin = SURE * math.hypot(*errors)
    if not first.value - last.value > margin:
        return
    weights = record.measured["end"].weights if "end" in record.measured else None
    if weights is None:
        return
    constraint_weights = {name: weight for name, weight in weights.items() if name != "reward"}
    if not constraint_weights:
        return

    # The constraint that pulled furthest: its weight times its rate's move towards the bound, in units of the bound.
    # The larger weight decides between equal pulls.
    pulls = {}
    for name, weight in constraint_weights.items():
        move = _move_to_bound(record.constraints[name], before.value(name), after.value(name))
        pulls[name] = weight * move, weight
    furthest = record.constraints[max(pulls, key=lambda name: pulls[name])]
    line = f"The reward fell from {first.value:.3g} to {last.value:.3g}. {furthest.name} {furthest.bound} pulled "
    line += f"furthest, with a weight of {constraint_weights[furthest.name]:.2f} beside the reward's "
    line += f"{weights['reward']:.2f}. "

    # Remedies.
    threshold = _reached_threshold(record, furthest, first.value - margin)
    schedule = _suggest_schedule(record, furthest)
    remedies = [remedy for remedy in (threshold, schedule) if remedy is not None]
    remedies.append("or more updates" if remedies else "more updates")
    yield f"{line}Try {', '.join(remedies)}."


def _move_to_bound(constraint: MeasuredConstraint, first: float | None, last: float | None) -> float:
    """Move of a constraint's value towards its bound since the start, in units of the bound; 0 if it moved away.

    1 where one of both values is unknown.
    """
    from lightning_cgrpo.objective.units import unit_of  # with torch, which a report does without

    if first is None or last is None:
        return 1.0
    bound = constraint.bound
    return max(0.0, (bound.violation(first) - bound.violation(last)) / unit_of(bound))


def _final_measurement(record: RunRecord) -> Measurement | None:
    """The last measurement of the reward: a validation, which has an error, else the end of training."""
    for key in ("last", "end"):
        if key in record.measured and record.measured[key].reward.value is not None:
            return record.measured[key]
    return None


def _reached_threshold(record: RunRecord, constraint: MeasuredConstraint, least: float) -> str | None:
    """The tightest threshold that a validation reached with at least this reward, as a declaration."""
    bound = constraint.bound
    reached = []
    for validation in record.validations:
        value = validation.value(constraint.name)
        reward = validation.reward.value
        if value is not None and reward is not None and reward >= least and not bound.met(value):
            reached.append(value)
    if not reached:
        return None
    tightest = max(reached) if bound.lower else min(reached)
    return f"{bound.declared_at(tightest)}, which was reached without this loss"


def _suggest_schedule(record: RunRecord, constraint: MeasuredConstraint) -> str | None:
    """A schedule from the first measured rate over two thirds of the run; None if that rate met the bound."""
    bound = constraint.bound
    first = record.measured["before"].value(constraint.name)
    if first is None or bound.met(first):
        return None
    over = max(1, round(2 / 3 * (record.asked or record.updates or 300)))
    start = bound.declared_at(first).partition(": ")[2]
    return f"a schedule (start: {start}, over: {over})"
