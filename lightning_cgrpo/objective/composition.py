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
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any, Literal

from lightning_cgrpo.core.errors import did_you_mean
from lightning_cgrpo.objective.constraint import ObjectiveError, as_number

if TYPE_CHECKING:
    from torch import Tensor

    from lightning_cgrpo.core.rollout import Signal, Signals

SignalKind = Literal["indicator", "number", "any"]

OPERATIONS = ("all_of", "any_of", "not", "above", "below")

Expression = str | Mapping[str, Any]
"""A signal's name, or ``{operation: operands}``."""


def check_compositions(declared: Mapping[str, object]) -> None:
    """Raise an `ObjectiveError` unless all are complete operations, and none is made of itself."""
    for name, expression in declared.items():
        _check_operation(f"signal '{name}'", expression)
    ordered(declared)  # type: ignore[arg-type]  # checked above


def checked_kinds(compositions: Mapping[str, Expression], kinds: Mapping[str, SignalKind]) -> dict[str, SignalKind]:
    """Kinds of the task's signals and the compositions.

    Raises:
        ObjectiveError: a composition takes the name of a task's signal, or does not fit its parts.
    """
    every: dict[str, SignalKind] = {**kinds, **dict.fromkeys(compositions, "indicator")}
    for name, expression in compositions.items():
        if name in kinds:
            raise ObjectiveError(
                f"Expected signal '{name}' to have another name than the task's signals, but the task has it, try a "
                "new name."
            )
        for part, number in operands(expression):
            check_declared(f"signal '{name}'", part, every)
            if every[part] == ("indicator" if number else "number"):
                wrong = "an indicator, try it alone" if number else f"a number, try {{above: {{{part}: LIMIT}}}}"
                raise ObjectiveError(
                    f"Expected signal '{name}' to be made of indicators and of numbers with limits, but '{part}' is "
                    f"{wrong}."
                )
    return every


def check_declared(what: str, signal: str, kinds: Iterable[str]) -> None:
    """Raise an `ObjectiveError` with the nearest name unless the signal is declared."""
    if signal not in kinds:
        hint = did_you_mean(signal, kinds)
        raise ObjectiveError(
            f"Expected {what} to name a signal of the task, {sorted(kinds)}, but got '{signal}'.{hint}"
        )


def check_indicators(signals: Signals, users: Mapping[str, str]) -> None:
    """Raise an `ObjectiveError` where a finite value is neither 0 nor 1, or counts give no rate.

    Args:
        users: by signal, the constraint or composition that needs an indicator.
    """
    from lightning_cgrpo.core.distributed import on_host

    wrong = {name: _no_indicator(signals[name]) for name in users}
    for (name, flags), some in zip(wrong.items(), on_host(*(flags.any() for flags in wrong.values())), strict=True):
        if some:
            value = float(signals[name].counts()[0][flags][0])
            raise ObjectiveError(
                f"Expected the signal of {users[name]} to be 0 or 1, but got {value:g}, try violated_above: or "
                "violated_below: of a constraint, or above: or below: of a signal, with a limit."
            )


def _no_indicator(signal: Signal) -> Tensor:
    count, opportunities = signal.counts()
    wrong = (count < 0) | (count > opportunities)
    if signal.count is None and (signal.opportunities is None or signal.value.dim() == 3):
        wrong = wrong | ((count != 0) & (count != 1))
    return wrong & count.isfinite()


def _check_operation(what: str, expression: object) -> None:
    """Raise an `ObjectiveError` unless this is a complete operation."""
    operations: list[tuple[str, Any]] = list(expression.items()) if isinstance(expression, Mapping) else []
    operation, operand = operations[0] if len(operations) == 1 else ("", ())
    if operation not in OPERATIONS:
        raise ObjectiveError(
            f"Expected {what} to be one operation of {', '.join(OPERATIONS)}, like {{below: {{tokens: 80}}}}, but got "
            f"{expression!r:.80}.{did_you_mean(str(operation), OPERATIONS)}"
        )
    if operation in ("above", "below"):
        limits = list(operand.values()) if isinstance(operand, Mapping) else []
        limit = limits[0] if len(limits) == 1 else None
        if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not math.isfinite(limit):
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
        if not isinstance(part, str):
            _check_operation(what, part)


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
    parts = {name: [part for part, _ in operands(expression)] for name, expression in declared.items()}
    try:
        return [name for name in TopologicalSorter(parts).static_order() if name in declared]
    except CycleError as error:
        circle = " -> ".join(error.args[1][::-1])
        raise ObjectiveError(f"Expected signals not to be made of themselves, but got {circle}.") from None


def composed(expression: Expression, signals: Signals) -> Signal:
    """The expression's indicator ``[B, G]``. It applies where all parts apply, and is NaN where a part is not finite.

    Raises:
        ObjectiveError: a part counts steps.
    """
    import torch

    from lightning_cgrpo.core.rollout import Signal

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
