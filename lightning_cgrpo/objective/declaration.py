"""Checks of declared constraints, without torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import get_args

from lightning_cgrpo.objective.constraint import BOUNDS, Constraint, ObjectiveError, Role

NUMBERS = (*BOUNDS, "aim", "start", "over")
LIMITS = ("violated_above", "violated_below")


def check_constraint(name: str, constraint: Constraint) -> None:
    """Raise an `ObjectiveError` if a declaration has wrong types, is incomplete or contradicts itself."""
    for rules in (_types, _choices, _subset, _bound, _schedule):
        for problem in rules(constraint):
            raise ObjectiveError(f"Expected constraint '{name}' to have {problem}.")


def check_schedule(name: str, constraint: Constraint, updates: float) -> None:
    """Refuse a schedule that goes past the run's end, so that its bound would never be in force."""
    if constraint.over is not None and constraint.over > updates:
        raise ObjectiveError(
            f"Expected constraint '{name}' to reach its bound within the run's {updates:g} updates, but got over: "
            f"{constraint.over}, try over: {max(int(updates * 2 / 3), 1)}."
        )


def _types(of: Constraint) -> Iterator[str]:
    for key in NUMBERS:
        value = getattr(of, key)
        if value is not None and not is_number(value):
            yield f"{key}: as a number, but got {value!r}"
    for key in LIMITS:
        limit = getattr(of, key)
        column = isinstance(limit, Mapping) and limit.keys() == {"column"} and isinstance(limit["column"], str)
        if limit is not None and not (is_number(limit) or column):
            yield f"{key}: as a number, or as {{column: NAME}} of the prompts, but got {limit!r}"
    for key in ("signal", "given"):
        name = getattr(of, key)
        if name is not None and not (isinstance(name, str) and name.strip()):
            yield f"{key}: as a signal's name, but got {name!r} ({type(name).__name__}), try quotes"
    if of.range is not None and not (
        isinstance(of.range, (list, tuple)) and len(of.range) == 2 and all(map(is_number, of.range))
    ):
        yield f"range: as two numbers, like [0, 100], but got {of.range!r}"


def is_number(value: object) -> bool:
    """True for a float, and for an integer that a float can be; YAML reads ``yes`` as True, which is no number."""
    return isinstance(value, float) or (isinstance(value, int) and type(value) is not bool and abs(value) < 2**1023)


def _choices(of: Constraint) -> Iterator[str]:
    if of.role not in get_args(Role):
        yield f"role: constrain or monitor, but got {of.role!r}"
    if of.violated_above is not None and of.violated_below is not None:
        yield "one of violated_above and violated_below, but got both"
    for key in LIMITS:
        limit = getattr(of, key)
        if is_number(limit) and not math.isfinite(limit):
            yield f"a finite {key}, but got {limit}"


def _subset(of: Constraint) -> Iterator[str]:
    if of.where is not None and of.by is not None:
        yield "one of where: and by:, but got both"
    if of.where is not None and (not isinstance(of.where, Mapping) or len(of.where) != 1):
        yield f"where: as a column and its value, like {{language: fr}}, but got {of.where}"
    if isinstance(of.by, str):
        yield f"by: with the column's values, but got the column {of.by!r} alone, try by: {{COLUMN: [VALUE, ...]}}"
    if of.by is not None:
        values = next(iter(of.by.values()), None) if isinstance(of.by, Mapping) and len(of.by) == 1 else None
        if not isinstance(values, list) or not values or len(set(map(str, values))) < len(values):
            yield f"by: as a column and its different values, like {{language: [en, fr]}}, but got {of.by}"


def _bound(of: Constraint) -> Iterator[str]:
    bounds = [key for key in BOUNDS if getattr(of, key) is not None]
    bound, threshold = of.bound, of.bound.threshold
    if len(bounds) > 1:
        words = " and ".join(f"{key}: {getattr(of, key)}" for key in bounds)
        yield f"one bound, but got both {words}, try two constraints on the same `signal`"
    if of.range is not None and not bound.of_mean:
        yield "a range: only with mean_at_most: or mean_at_least:, since a rate is in [0, 1]"
    if threshold is None:
        if of.role == "constrain":
            yield "a bound, at_most: or at_least:, or role: monitor"
    elif bound.of_mean:
        yield from _mean(of, threshold)
    elif not 0.0 <= threshold <= 1.0:
        hint = f" (did you mean {threshold / 100:g}?)" if 1.0 < threshold <= 100.0 else ""
        yield f"{bound.key} in [0, 1], a rate, but got {threshold}{hint}"
    elif of.from_number and bound.lower:
        limit = "violated_above" if of.violated_below is None else "violated_below"
        yield f"at_most: with {limit}:, the rate of violations, but got at_least: {threshold:g}, try at_most: " + (
            f"{bound.target:g}"
        )
    elif of.role == "constrain" and bound.target == 1:
        hint = "0.99" if bound.lower else "0.01 for 1 %"
        yield f"a bound that can be violated, but got {bound.key}: {threshold:g}, try {hint}, or role: monitor"
    yield from _aim(of)


def _aim(of: Constraint) -> Iterator[str]:
    bound = of.bound
    if of.aim is None:
        return
    if of.role == "monitor" or bound.threshold is None:
        yield "no aim:, since it is only monitored"
    elif not math.isfinite(of.aim) or not (bound.of_mean or 0 <= of.aim <= 1) or not bound.met(of.aim):
        yield f"an aim: at least as strict as its bound, {bound.key}: {bound.threshold:g}, but got {of.aim:g}"


def _mean(of: Constraint, threshold: float) -> Iterator[str]:
    key = of.bound.key
    if not math.isfinite(threshold):
        yield f"a finite {key}, but got {threshold}"
    if of.from_number:
        limit = "violated_above" if of.violated_below is None else "violated_below"
        yield f"a bound of a mean or of a rate, but got {key} and {limit}, try {key.removeprefix('mean_')}: with a rate"
    if of.range is None:
        return
    if not all(map(math.isfinite, of.range)) or of.range[0] >= of.range[1]:
        yield f"a range: of the signal's least and greatest value, but got {of.range}, try [0, 100]"
    elif not of.range[0] < threshold < of.range[1]:
        yield f"{key} within its range: {of.range}, but got {threshold}"


def _schedule(of: Constraint) -> Iterator[str]:
    bound = of.bound
    if of.start is None and of.over is None:
        return
    if of.role == "monitor" or bound.threshold is None:
        yield "no schedule, since it is only monitored; remove start:"
    elif of.start is None or of.over is None:
        yield f"start: with over: (updates), but got start: {of.start} and over: {of.over}"
    elif not isinstance(of.over, int) or of.over < 1:
        yield f"over: as a number of updates, but got {of.over}"
    elif not math.isfinite(of.start) or not (bound.of_mean or 0 <= of.start <= 1):
        yield f"start: like its bound, {bound.key}, but got {of.start}"
    elif of.start == bound.threshold or (of.start > bound.threshold) == bound.lower:
        side = "smaller" if bound.lower else "larger"
        yield f"a threshold that tightens, but got {of.start:g} before {bound.threshold:g}, try a {side} start:"
