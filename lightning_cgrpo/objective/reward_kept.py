"""Lines about a run that lost its reward to a constraint, or holds a constraint short of its threshold."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from lightning_cgrpo.objective.bound import Bound

SURE = 2.0
"""Standard errors by which a reward ends below its start, to be told."""

Record = Mapping[str, Any]


def advice(record: Record) -> list[str]:
    """A line per held constraint, and a line if the reward ended below its start beyond its error.

    Args:
        record: a run's summary (`RunSummary`): ``constraints``, ``measured``, ``validations`` and ``held``, which
            is None without a dual, and missing in the oldest committed summaries.
    """
    return [*_held(record), *_lost(record)]


def _held(record: Record) -> Iterator[str]:
    for name, reached in (record.get("held") or {}).items():
        bound = bound_of(record, name)
        yield (
            f"{name} {bound} was not met and did not get better, so training holds what was reached: try "
            f"{bound.declared_at(reached)}."
        )


def _lost(record: Record) -> Iterator[str]:
    if record.get("held") is None:  # Fixed weights have thresholds that no one enforces.
        return
    measured = record.get("measured") or {}
    before = (measured.get("before") or {}).get("reward") or {}
    after = _final(measured)
    if before.get("value") is None or after is None:
        return
    reward = after["reward"]
    errors = [of["error"] for of in (before, reward) if of.get("error") is not None]
    error = math.hypot(*errors)
    # Not sure, unknown, or not a number.
    if not errors or not before["value"] - reward["value"] > SURE * error:
        return
    weights = (measured.get("end") or {}).get("weights") or {}
    constraints = {name: weight for name, weight in weights.items() if name != "reward"}
    if not constraints:
        return
    # The constraint that pulled furthest: its weight times its rate's move towards the bound, in units of the bound.
    pulls = {name: (weight * _moved(record, name, after), weight) for name, weight in constraints.items()}
    dearest = max(pulls, key=lambda name: pulls[name])
    line = f"The reward fell from {before['value']:.3g} to {reward['value']:.3g}. {dearest} "
    line += f"{bound_of(record, dearest)} pulled furthest, with a weight of {constraints[dearest]:.2f} beside the "
    line += f"reward's {weights['reward']:.2f}. Try "
    kept = _kept(record, dearest, before["value"] - SURE * error)
    if kept is not None:
        line += f"{kept}, which was reached without this loss, "
    schedule = _schedule(record, dearest)
    if schedule is not None:
        line += f"a schedule ({schedule}), "
    yield f"{line}or more updates." if line.endswith(", ") else f"{line}more updates."


def _moved(record: Record, name: str, after: Record) -> float:
    """Move of a constraint's value towards its bound since the start, in units of the bound; 0 if it moved away.

    1 where one of both values is unknown.
    """
    from lightning_cgrpo.objective.units import unit  # with torch, which a report does without

    first = record["measured"]["before"]["constraints"].get(name, {}).get("value")
    last = after["constraints"].get(name, {}).get("value")
    if first is None or last is None:
        return 1.0
    bound = bound_of(record, name)
    return max(0.0, (bound.violation(first) - bound.violation(last)) / unit(bound))


def _final(measured: Record) -> Record | None:
    """The last measurement of the reward: a validation, which has an error, else the end of training."""
    candidates = [measured.get(key) for key in ("last", "end")]
    for candidate in candidates:
        if candidate and (candidate.get("reward") or {}).get("value") is not None:
            return candidate
    return None


def _kept(record: Record, name: str, least: float) -> str | None:
    """The tightest threshold of `name` that a validation reached with at least this reward, as a declaration."""
    bound = bound_of(record, name)
    reached = []
    for validation in record.get("validations") or []:
        value = validation["constraints"].get(name, {}).get("value")
        reward = validation["reward"]["value"]
        if value is not None and reward is not None and reward >= least and not bound.met(value):
            reached.append(value)
    if not reached:
        return None
    tightest = max(reached) if bound.lower else min(reached)
    return bound.declared_at(tightest)


def _schedule(record: Record, name: str) -> str | None:
    """A schedule from the first measured rate over two thirds of the run; None if that rate met the bound."""
    bound = bound_of(record, name)
    first = record["measured"]["before"]["constraints"].get(name, {}).get("value")
    if first is None or bound.met(first):
        return None
    over = max(1, round(2 / 3 * (record.get("asked") or record.get("updates") or 300)))
    start = bound.declared_at(first).partition(": ")[2]
    return f"start: {start}, over: {over}"


def bound_of(record: Record, name: str) -> Bound:
    """The declared bound of a constraint."""
    declared = record["constraints"][name]
    return Bound(declared["kind"], declared["direction"], declared["threshold"])
