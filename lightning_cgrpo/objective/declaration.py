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
    for find_problems in (_type_problems, _choice_problems, _subset_problems, _bound_problems, _schedule_problems):
        for problem in find_problems(constraint):
            raise ObjectiveError(f"Expected constraint '{name}' to have {problem}.")


def check_schedule(name: str, constraint: Constraint, updates: float) -> None:
    """Refuse a schedule that goes past the run's end, so that its bound would never be in force."""
    if constraint.over is not None and constraint.over > updates:
        raise ObjectiveError(
            f"Expected constraint '{name}' to reach its bound within the run's {updates:g} updates, but got over: "
            f"{constraint.over}, try over: {max(int(updates * 2 / 3), 1)}."
        )


def _type_problems(constraint: Constraint) -> Iterator[str]:
    """Values of other types than the declaration has."""
    for key in NUMBERS:
        value = getattr(constraint, key)
        if value is not None and not is_number(value):
            yield f"{key}: as a number, but got {value!r}"
    for key in LIMITS:
        limit = getattr(constraint, key)
        is_column = isinstance(limit, Mapping) and limit.keys() == {"column"} and isinstance(limit["column"], str)
        if limit is not None and not is_number(limit) and not is_column:
            yield f"{key}: as a number, or as {{column: NAME}} of the prompts, but got {limit!r}"
    for key in ("signal", "given"):
        name = getattr(constraint, key)
        is_name = isinstance(name, str) and name.strip()
        if name is not None and not is_name:
            yield f"{key}: as a signal's name, but got {name!r} ({type(name).__name__}), try quotes"
    span = constraint.range
    if span is not None:
        is_pair = isinstance(span, (list, tuple)) and len(span) == 2
        if not is_pair or not all(map(is_number, span)):
            yield f"range: as two numbers, like [0, 100], but got {span!r}"


def is_number(value: object) -> bool:
    """True for a float, and for an integer that a float can be; YAML reads ``yes`` as True, which is no number."""
    if isinstance(value, float):
        return True
    return isinstance(value, int) and type(value) is not bool and abs(value) < 2**1023


def _choice_problems(constraint: Constraint) -> Iterator[str]:
    """An unknown role, two limits, or a limit that is not finite."""
    if constraint.role not in get_args(Role):
        yield f"role: constrain or monitor, but got {constraint.role!r}"
    if constraint.violated_above is not None and constraint.violated_below is not None:
        yield "one of violated_above and violated_below, but got both"
    for key in LIMITS:
        limit = getattr(constraint, key)
        if is_number(limit) and not math.isfinite(limit):
            yield f"a finite {key}, but got {limit}"


def _subset_problems(constraint: Constraint) -> Iterator[str]:
    """Subsets that are not one column with a value, or with different values."""
    where, by = constraint.where, constraint.by
    if where is not None and by is not None:
        yield "one of where: and by:, but got both"
    if where is not None and (not isinstance(where, Mapping) or len(where) != 1):
        yield f"where: as a column and its value, like {{language: fr}}, but got {where}"
    if isinstance(by, str):
        yield f"by: with the column's values, but got the column {by!r} alone, try by: {{COLUMN: [VALUE, ...]}}"
    if by is None:
        return
    values: object = None
    if isinstance(by, Mapping) and len(by) == 1:
        [values] = by.values()
    if not isinstance(values, list) or not values or len(set(map(str, values))) < len(values):
        yield f"by: as a column and its different values, like {{language: [en, fr]}}, but got {by}"


def _bound_problems(constraint: Constraint) -> Iterator[str]:
    """No bound, several bounds, or a threshold that the bound cannot have."""
    keys = [key for key in BOUNDS if getattr(constraint, key) is not None]
    bound = constraint.bound
    threshold = bound.threshold
    if len(keys) > 1:
        words = " and ".join(f"{key}: {getattr(constraint, key)}" for key in keys)
        yield f"one bound, but got both {words}, try two constraints on the same `signal`"
    if constraint.range is not None and not bound.of_mean:
        yield "a range: only with mean_at_most: or mean_at_least:, since a rate is in [0, 1]"
    if threshold is None:
        if constraint.role == "constrain":
            yield "a bound, at_most: or at_least:, or role: monitor"
    elif bound.of_mean:
        yield from _mean_problems(constraint, threshold)
    elif not 0.0 <= threshold <= 1.0:
        hint = f" (did you mean {threshold / 100:g}?)" if 1.0 < threshold <= 100.0 else ""
        yield f"{bound.key} in [0, 1], a rate, but got {threshold}{hint}"
    elif constraint.from_number and bound.lower:
        yield (
            f"at_most: with {_limit_key(constraint)}:, the rate of violations, but got at_least: {threshold:g}, "
            f"try at_most: {bound.target:g}"
        )
    elif constraint.role == "constrain" and bound.target == 1:
        hint = "0.99" if bound.lower else "0.01 for 1 %"
        yield f"a bound that can be violated, but got {bound.key}: {threshold:g}, try {hint}, or role: monitor"
    yield from _aim_problems(constraint)


def _limit_key(constraint: Constraint) -> str:
    """The key that declares a number's limit."""
    return "violated_above" if constraint.violated_below is None else "violated_below"


def _aim_problems(constraint: Constraint) -> Iterator[str]:
    """An aim without an enforced bound, or looser than the bound."""
    aim, bound = constraint.aim, constraint.bound
    if aim is None:
        return
    if constraint.role == "monitor" or bound.threshold is None:
        yield "no aim:, since it is only monitored"
        return
    in_range = math.isfinite(aim) and (bound.of_mean or 0 <= aim <= 1)
    if not in_range or not bound.met(aim):
        yield f"an aim: at least as strict as its bound, {bound.key}: {bound.threshold:g}, but got {aim:g}"


def _mean_problems(constraint: Constraint, threshold: float) -> Iterator[str]:
    """A threshold of a mean that is not finite or outside its range, a limit, or an empty range."""
    key = constraint.bound.key
    if not math.isfinite(threshold):
        yield f"a finite {key}, but got {threshold}"
    if constraint.from_number:
        limit = _limit_key(constraint)
        yield f"a bound of a mean or of a rate, but got {key} and {limit}, try {key.removeprefix('mean_')}: with a rate"
    if constraint.range is None:
        return
    least, greatest = constraint.range
    if not math.isfinite(least) or not math.isfinite(greatest) or least >= greatest:
        yield f"a range: of the signal's least and greatest value, but got {constraint.range}, try [0, 100]"
    elif not least < threshold < greatest:
        yield f"{key} within its range: {constraint.range}, but got {threshold}"


def _schedule_problems(constraint: Constraint) -> Iterator[str]:
    """A schedule that is incomplete, or does not tighten toward an enforced bound."""
    start, over, bound = constraint.start, constraint.over, constraint.bound
    if start is None and over is None:
        return
    if constraint.role == "monitor" or bound.threshold is None:
        yield "no schedule, since it is only monitored; remove start:"
    elif start is None or over is None:
        yield f"start: with over: (updates), but got start: {start} and over: {over}"
    elif not isinstance(over, int) or over < 1:
        yield f"over: as a number of updates, but got {over}"
    elif not math.isfinite(start) or not (bound.of_mean or 0 <= start <= 1):
        yield f"start: like its bound, {bound.key}, but got {start}"
    elif start == bound.threshold or (start > bound.threshold) == bound.lower:
        side = "smaller" if bound.lower else "larger"
        yield f"a threshold that tightens, but got {start:g} before {bound.threshold:g}, try a {side} start:"
