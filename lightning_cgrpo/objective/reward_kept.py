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
            is None without a dual, and missing in summaries of earlier versions.
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
    error = math.hypot(before.get("error") or 0, reward.get("error") or 0)
    if before["value"] - reward["value"] <= SURE * error:
        return
    weights = (measured.get("end") or {}).get("weights") or {}
    constraints = {name: weight for name, weight in weights.items() if name != "reward"}
    if not constraints:
        return
    # The constraint that pulled furthest: its weight times the distance that its rate moved, in units of its bound.
    pulls = {name: weight * _moved(record, name, after) for name, weight in constraints.items()}
    dearest = max(pulls, key=lambda name: pulls[name])
    line = f"The reward fell from {before['value']:.3g} to {reward['value']:.3g}. {dearest} "
    line += f"{bound_of(record, dearest)} pulled furthest, with a weight of {constraints[dearest]:.2f} beside the "
    line += f"reward's {weights['reward']:.2f}. Try "
    kept = _kept(record, dearest, before["value"] - SURE * error)
    if kept is not None:
        line += f"{kept}, which was reached without this loss, "
    yield line + f"a schedule ({_schedule(record, dearest)}), or more updates."


def _moved(record: Record, name: str, after: Record) -> float:
    """Distance of a constraint's value from its start, in units of its bound; 1 where one of both is unknown."""
    from lightning_cgrpo.objective.units import unit  # with torch, which a report does without

    first = record["measured"]["before"]["constraints"].get(name, {}).get("value")
    last = after["constraints"].get(name, {}).get("value")
    if first is None or last is None:
        return 1.0
    return float(abs(last - first) / unit(bound_of(record, name)))


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


def _schedule(record: Record, name: str) -> str:
    """A schedule that starts at the first measured rate and takes two thirds of the run."""
    first = record["measured"]["before"]["constraints"].get(name, {}).get("value")
    over = max(1, round(2 / 3 * (record.get("asked") or record.get("updates") or 300)))
    if first is None:
        return f"over: {over}"
    start = bound_of(record, name).declared_at(first).partition(": ")[2]
    return f"start: {start}, over: {over}"


def bound_of(record: Record, name: str) -> Bound:
    """The declared bound of a constraint."""
    declared = record["constraints"][name]
    return Bound(declared["kind"], declared["direction"], declared["threshold"])
