"""Checks of declared constraints, without torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, get_args

from lightning_cgrpo.objective.constraint import BOUNDS, Constraint, Cost, ObjectiveError, Role
from lightning_cgrpo.objective.subsets import check_subset


def check_numbers(name: str, declared: Mapping[str, Any]) -> None:
    """Raise an `ObjectiveError` where a declaration has another value than a number, or a list of numbers."""
    for key in (*BOUNDS, "violated_above", "violated_below", "over", "notch"):
        if declared.get(key) is not None and not _is_number(declared[key]):
            raise ObjectiveError(f"Expected {key} of constraint '{name}' to be a number, but got '{declared[key]}'.")
    signal = declared.get("signal")
    if signal is not None and not isinstance(signal, str):
        raise ObjectiveError(
            f"Expected signal of constraint '{name}' to be a signal's name, but got {signal} "
            f"({type(signal).__name__}), try quotes."
        )
    start, values = declared.get("start"), declared.get("range")
    if start is not None and not (_is_number(start) or _are_numbers(start)):
        raise ObjectiveError(
            f"Expected start of constraint '{name}' to be a number or a list of numbers, but got '{start}'."
        )
    if values is not None and not _are_numbers(values):
        raise ObjectiveError(
            f"Expected range of constraint '{name}' to be two numbers, like [0, 100], but got '{values}'."
        )


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _are_numbers(values: object) -> bool:
    return isinstance(values, list) and all(map(_is_number, values))


def check_constraint(name: str, of: Constraint) -> None:
    """Raise an `ObjectiveError` if a declaration is incomplete or contradicts itself."""
    where = f"constraint '{name}'"
    if of.role not in get_args(Role):
        raise ObjectiveError(f"Expected {where} to have role: constrain or monitor, but got '{of.role}'.")
    if of.cost not in get_args(Cost):
        raise ObjectiveError(f"Expected {where} to have cost: signal or excess, but got '{of.cost}'.")
    check_subset(name, of)
    given = [word for word in BOUNDS if getattr(of, word) is not None]
    if len(given) > 1:
        words = " and ".join(f"{word}: {getattr(of, word)}" for word in given)
        what = "a signal" if of.bound.of_mean or given[1].startswith("mean") else "a rate"
        raise ObjectiveError(
            f"Expected {where} to have one bound, but got both {words}. "
            f"Declare two constraints on the same `signal` to bound {what} from both sides."
        )
    if of.bound.threshold is None and of.role == "constrain":
        raise ObjectiveError(f"Expected {where} to have a bound, at_most: or at_least:, or role: monitor.")
    if of.bound.of_mean:
        _check_mean(of, where)
    elif of.bound.threshold is not None:
        _check_rate(of, where, of.bound.threshold)
    if of.violated_above is not None and of.violated_below is not None:
        raise ObjectiveError(f"Expected {where} to have one of violated_above and violated_below, but got both.")
    for word, number in (("violated_above", of.violated_above), ("violated_below", of.violated_below)):
        if number is not None and not math.isfinite(number):
            raise ObjectiveError(f"Expected {where} to have a finite {word}, but got {number}.")
    if not (of.start is None and of.over is None and of.notch is None):
        _check_schedule(of, where)
    if of.range is not None and not of.bound.of_mean:
        raise ObjectiveError(
            f"Expected {where} to have a range: only with mean_at_most: or mean_at_least:, since a rate is in [0, 1]."
        )


def _check_rate(of: Constraint, where: str, bound: float) -> None:
    if not 0.0 <= bound <= 1.0:
        hint = f" (did you mean {bound / 100:g}?)" if 1.0 < bound <= 100.0 else ""
        raise ObjectiveError(f"Expected {where} to have {of.bound.key} in [0, 1], a rate, but got {bound}{hint}.")
    if of.role == "constrain" and (of.at_most == 1 or of.at_least == 0):
        given = "at_least: 0" if of.bound.lower else "at_most: 1"
        hint = "0.99" if of.bound.lower else "0.01 for 1 %"
        raise ObjectiveError(
            f"Expected {where} to have a bound that can be violated, but got {given}, a rate of "
            f"{'0' if of.bound.lower else '100'} %, try {hint}, or role: monitor."
        )


def _check_mean(of: Constraint, where: str) -> None:
    assert of.bound.threshold is not None
    if not math.isfinite(of.bound.threshold):
        raise ObjectiveError(f"Expected {where} to have a finite {of.bound.key}, but got {of.bound.threshold}.")
    if of.from_number:
        word = "violated_above" if of.violated_below is None else "violated_below"
        raise ObjectiveError(
            f"Expected {where} to bound a mean or a rate, but got {of.bound.key} and {word}, try "
            f"{of.bound.key.removeprefix('mean_')}: with a rate, or no {word}."
        )
    if of.range is None:
        return
    if len(of.range) != 2 or not all(map(math.isfinite, of.range)) or of.range[0] >= of.range[1]:
        raise ObjectiveError(
            f"Expected {where} to have a range: of the signal's least and greatest value, but got {of.range}, "
            "try [0, 100]."
        )
    if not of.range[0] < of.bound.threshold < of.range[1]:
        raise ObjectiveError(
            f"Expected {where} to have {of.bound.key} within its range: {of.range}, but got {of.bound.threshold}."
        )


def _check_schedule(of: Constraint, where: str) -> None:
    if of.role == "monitor" or of.bound.threshold is None:
        raise ObjectiveError(f"Expected {where} to have no schedule, since it is only monitored; remove start:.")
    if of.start is None or (of.over is None) == (of.notch is None):
        given = ", ".join(f"{word}:" for word in ("start", "over", "notch") if getattr(of, word) is not None)
        raise ObjectiveError(
            f"Expected {where} to have start: with over: (updates) or with notch: (a step), but got {given} alone."
            if of.over is None or of.notch is None
            else f"Expected {where} to have one of over: and notch:, but got both."
        )
    starts = of.start if isinstance(of.start, list) else [of.start]
    if not starts or (of.notch is not None and isinstance(of.start, list)):
        raise ObjectiveError(
            f"Expected {where} to have start: as one threshold{' for notch:' if starts else ''}, but got "
            f"{of.start}, try a number."
        )
    for one, following in zip(starts, [*starts[1:], of.bound.threshold], strict=True):
        if not math.isfinite(one) or not (of.bound.of_mean or 0 <= one <= 1):
            raise ObjectiveError(f"Expected {where} to have start: like its bound, {of.bound.key}, but got {one}.")
        if one == following or (one > following) == of.bound.lower:
            raise ObjectiveError(
                f"Expected {where} to have thresholds that tighten, but got {one:g} before {following:g}, try a "
                f"{'smaller' if of.bound.lower else 'larger'} start:."
            )
    if of.over is not None and not isinstance(of.over, int):
        raise ObjectiveError(f"Expected {where} to have over: as a whole number of updates, but got {of.over}.")
    if of.over is not None and of.over < len(starts):
        raise ObjectiveError(f"Expected {where} to have over: of at least {len(starts)} updates, but got {of.over}.")
    if of.notch is not None and not 0 < of.notch < math.inf:
        raise ObjectiveError(f"Expected {where} to have a positive notch:, but got {of.notch}.")


def check_schedule(name: str, constraint: Constraint, updates: float) -> None:
    """Refuse a schedule that goes past the run's end, so that its bound would never be in force."""
    if constraint.over is not None and constraint.over > updates:
        raise ObjectiveError(
            f"Expected constraint '{name}' to reach its bound within the run's {updates:g} updates, but got over: "
            f"{constraint.over}, try over: {max(int(updates * 2 / 3), 1)}."
        )
