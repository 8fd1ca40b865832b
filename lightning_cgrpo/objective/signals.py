"""Kinds of signals, and what a constraint needs of them.

Functions import torch themselves, so that the command line checks a declaration without torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal

from lightning_cgrpo.core.errors import did_you_mean
from lightning_cgrpo.objective.constraint import ObjectiveError

if TYPE_CHECKING:
    from torch import Tensor

    from lightning_cgrpo.core.rollout import Signal, Signals

SignalKind = Literal["indicator", "number", "any"]


def check_declared(what: str, signal: str, kinds: Iterable[str]) -> None:
    """Raise an `ObjectiveError` with the nearest name unless the signal is declared."""
    if signal not in kinds:
        hint = did_you_mean(signal, kinds)
        raise ObjectiveError(
            f"Expected {what} to name a signal of the task, {sorted(kinds)}, but got {signal!r}.{hint}"
        )


def check_condition(name: str, signal: str, given: str | None, kinds: Mapping[str, SignalKind]) -> None:
    """Raise an `ObjectiveError` unless `given` is None or an indicator beside the constraint's own signal."""
    if given is None:
        return
    check_declared(f"given: of constraint '{name}'", given, kinds)
    if given == signal:
        raise ObjectiveError(
            f"Expected constraint '{name}' to be given another signal than its own, but got given: {given}, try it "
            "without given:."
        )
    if kinds[given] == "number":
        raise ObjectiveError(
            f"Expected constraint '{name}' to be given an indicator, but got the number '{given}', which has no limit, "
            "try a signal of 0 and 1."
        )


def check_indicators(signals: Signals, users: Mapping[str, tuple[str, str]]) -> None:
    """Raise an `ObjectiveError` where a finite value is neither 0 nor 1, or counts give no rate.

    Args:
        users: by signal, who needs an indicator, and what to try instead of a number.
    """
    from lightning_cgrpo.core.distributed import on_host

    wrong_values = {name: _wrong_values(signals[name]) for name in users}
    # One wait for the device tells which signals have wrong values.
    has_wrong_values = on_host(*(wrong.any() for wrong in wrong_values.values()))
    for (name, wrong), has_wrong in zip(wrong_values.items(), has_wrong_values, strict=True):
        if has_wrong:
            count, _ = signals[name].counts()
            first_wrong = float(count[wrong][0])
            user, hint = users[name]
            raise ObjectiveError(f"Expected {user} to be 0 or 1, but got {first_wrong:g}, try {hint}.")


def _wrong_values(signal: Signal) -> Tensor:
    """Bool, as the counts: finite counts outside [0, opportunities], or values that are neither 0 nor 1."""
    count, opportunities = signal.counts()
    wrong = (count < 0) | (count > opportunities)
    counts_are_values = signal.count is None and (signal.opportunities is None or signal.value.dim() == 3)
    if counts_are_values:
        wrong = wrong | ((count != 0) & (count != 1))
    return wrong & count.isfinite()
