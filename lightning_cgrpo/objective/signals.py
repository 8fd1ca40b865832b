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

    wrong = {name: _no_indicator(signals[name]) for name in users}
    for (name, flags), some in zip(wrong.items(), on_host(*(flags.any() for flags in wrong.values())), strict=True):
        if some:
            value = float(signals[name].counts()[0][flags][0])
            user, hint = users[name]
            raise ObjectiveError(f"Expected {user} to be 0 or 1, but got {value:g}, try {hint}.")


def _no_indicator(signal: Signal) -> Tensor:
    count, opportunities = signal.counts()
    wrong = (count < 0) | (count > opportunities)
    if signal.count is None and (signal.opportunities is None or signal.value.dim() == 3):
        wrong = wrong | ((count != 0) & (count != 1))
    return wrong & count.isfinite()
