"""Signals made of signals: named operations, declared in the objective.

    brief: {below: {tokens: 80}}                       # 1 if the number is smaller
    long: {above: {tokens: 200}}                       # 1 if the number is larger
    neat: {all_of: [format, brief]}                    # 1 if all indicators are 1
    risky: {any_of: [rude, {not: format}]}             # 1 if any indicator is 1; operations may be nested

Functions import torch themselves, so that the command line checks a declaration without torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from lightning_cgrpo.errors import did_you_mean
from lightning_cgrpo.objective.constraint import ObjectiveError, as_number

if TYPE_CHECKING:
    from lightning_cgrpo.rollout import Signal, Signals

SignalKind = Literal["indicator", "number", "any"]

OWN = ("kl", "entropy", "gap")
DRIFTS = ("kl", "gap")
"""The policy's own signals, numbers measured in training where log-probabilities are known, see `own_signals`."""
OPERATIONS = ("all_of", "any_of", "not", "above", "below")

Expression = str | Mapping[str, Any]
"""A signal's name, or ``{operation: operands}``."""


def check_compositions(declared: Mapping[str, object]) -> None:
    """Raise an `ObjectiveError` unless all are complete operations, and none is made of itself."""
    for name, expression in declared.items():
        if isinstance(expression, str):
            raise ObjectiveError(
                f"Expected signal '{name}' to be one operation, like {{below: {{tokens: 80}}}}, but got '{expression}'."
            )
        _check_expression(f"signal '{name}'", expression)
    ordered(declared)  # type: ignore[arg-type]  # checked above


def checked_kinds(compositions: Mapping[str, Expression], known: Mapping[str, SignalKind]) -> dict[str, SignalKind]:
    """Kinds of the known signals and the compositions.

    Raises:
        ObjectiveError: a composition takes the name of a known signal, or does not fit its parts.
    """
    kinds: dict[str, SignalKind] = {**known, **dict.fromkeys(compositions, "indicator")}
    for name, expression in compositions.items():
        if name in known:
            raise ObjectiveError(
                f"Expected signal '{name}' to have another name than the task's signals, but the task has it, try a "
                "new name."
            )
        for part, number in operands(expression):
            check_known(f"signal '{name}'", part, kinds)
            if number and kinds[part] == "indicator":
                raise ObjectiveError(
                    f"Expected signal '{name}' to compare a number with its limit, but '{part}' is an indicator, try "
                    "its name alone, or not:."
                )
            if not number and kinds[part] == "number":
                raise ObjectiveError(
                    f"Expected signal '{name}' to be made of indicators, but '{part}' is a number, try "
                    f"{{above: {{{part}: LIMIT}}}}."
                )
    return kinds


def check_known(what: str, signal: str, declared: Iterable[str]) -> None:
    """Raise an `ObjectiveError` with the nearest name unless the signal is declared."""
    if signal not in declared:
        hint = did_you_mean(signal, declared)
        raise ObjectiveError(
            f"Expected {what} to name a signal of the task, {sorted(declared)}, but got '{signal}'.{hint}"
        )


def _check_expression(what: str, expression: object) -> None:
    """Raise an `ObjectiveError` unless this is a name or a complete operation."""
    if isinstance(expression, str) and expression:
        return
    if not isinstance(expression, Mapping) or len(expression) != 1:
        raise ObjectiveError(
            f"Expected {what} to be one operation, like {{below: {{tokens: 80}}}}, but got {expression!r:.80}; "
            f"operations are {', '.join(OPERATIONS)}."
        )
    [(operation, operand)] = expression.items()
    if operation not in OPERATIONS:
        hint = did_you_mean(str(operation), OPERATIONS) or f" Known: {', '.join(OPERATIONS)}."
        raise ObjectiveError(f"Expected {what} to be made by an operation, but got '{operation}'.{hint}")
    if operation in ("above", "below"):
        limits = list(operand.values()) if isinstance(operand, Mapping) else []
        number = limits[0] if len(limits) == 1 else None
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not math.isfinite(number):
            raise ObjectiveError(
                f"Expected {operation} of {what} to be one signal and its limit, like {{tokens: 80}}, but got "
                f"{operand}."
            )
        return
    if operation != "not" and (not isinstance(operand, (list, tuple)) or len(operand) < 2):
        raise ObjectiveError(
            f"Expected {operation} of {what} to be a list of at least two signals, like [format, brief], but got "
            f"{operand}."
        )
    for part in [operand] if operation == "not" else operand:
        _check_expression(what, part)


def operands(expression: Expression) -> Iterator[tuple[str, bool]]:
    """Names of the signals in an expression, with True for numbers that are compared, False for indicators."""
    if isinstance(expression, str):
        yield expression, False
        return
    [(operation, operand)] = expression.items()
    if operation in ("above", "below"):
        yield from ((name, True) for name in operand)
    else:
        for part in [operand] if operation == "not" else operand:
            yield from operands(part)


def ordered(declared: Mapping[str, Expression]) -> list[str]:
    """The names, each after the declared signals that it is made of.

    Raises:
        ObjectiveError: a signal is made of itself.
    """
    found: list[str] = []

    def visit(name: str, above: tuple[str, ...]) -> None:
        if name in above:
            circle = " -> ".join((*above[above.index(name) :], name))
            raise ObjectiveError(f"Expected signals not to be made of themselves, but got {circle}.")
        if name in declared and name not in found:
            for part, _ in operands(declared[name]):
                visit(part, (*above, name))
            found.append(name)

    for name in declared:
        visit(name, ())
    return found


def composed(expression: Expression, signals: Signals) -> Signal:
    """The expression's indicator ``[B, G]``. It applies where all parts apply, and is NaN where a part is not finite.

    Raises:
        ObjectiveError: a part is no indicator, or counts steps.
    """
    import torch

    from lightning_cgrpo.rollout import Signal

    if isinstance(expression, str):
        return _whole(expression, signals)
    [(operation, operand)] = expression.items()
    if operation in ("above", "below"):
        [(name, limit)] = operand.items()
        signal = _whole(name, signals)
        value = as_number(signal.value)
        result = value > limit if operation == "above" else value < limit
        return Signal(torch.where(value.isfinite(), result.to(value.dtype), torch.nan), applicable=signal.applicable)
    parts = [composed(part, signals) for part in ([operand] if operation == "not" else operand)]
    for part in parts:
        _check_indicator(part, expression)
    values = torch.stack([as_number(part.value).double() for part in parts])
    if operation == "not":
        value = 1 - values[0]
    else:
        # NaN spreads through sums: an answer with a fault has no composition.
        value = (values.sum(0) == len(parts) if operation == "all_of" else values.sum(0) > 0).double()
        value = torch.where(values.isfinite().all(0), value, torch.nan)
    masks = [part.applicable for part in parts if part.applicable is not None]
    applicable = torch.stack(masks).all(0) if masks else None
    return Signal(value.to(torch.get_default_dtype()), applicable=applicable)


def _whole(name: str, signals: Signals) -> Signal:
    signal = signals[name]
    if signal.count is not None or signal.opportunities is not None or signal.value.dim() != 2:
        raise ObjectiveError(
            f"Expected signals of whole answers to compose, but got '{name}', which counts steps, try a signal of "
            "whole answers."
        )
    return signal


def _check_indicator(part: Signal, expression: Expression) -> None:
    value = part.value
    wrong = (value != 0) & (value != 1) & as_number(value).isfinite()
    if part.applicable is not None:
        wrong &= part.applicable
    if bool(wrong.any()):
        raise ObjectiveError(
            f"Expected indicators, 0 or 1, in {expression}, but got {float(value[wrong][0]):g}, try above: or below:."
        )
