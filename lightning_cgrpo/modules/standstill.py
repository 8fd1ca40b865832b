"""Detection of a run that cannot learn: a constant reward, no finite gradient, or a signal that is never finite."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning.pytorch.utilities import rank_zero_warn

from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.objective.moments import faults_of
from lightning_cgrpo.objective.objective import Objective

UPDATES = 20
"""Least number of updates in which a cause must hold."""
UNSTABLE = "no gradient is finite"


class StandstillDetector:
    """Warns, once per cause, if a cause held in the last 20 updates.

    - No gradient was finite.
    - No two answers to a prompt differ in a reward, and not all answers have a reward of 1. A reward without any
      difference since the first update is told in the second update, because it is usually a mistake.

    A signal without one finite value among its applicable answers trains nothing, and ends training.
    """

    def __init__(self, objective: Objective) -> None:
        self.objective = objective
        self._since: dict[str, int] = {}
        self._told: set[str] = set()

    def check(self, update: int, totals: Mapping[str, float], stepped: bool) -> None:
        """Look at an update.

        Args:
            totals: sums of the update over all processes, from `UpdateReport.totals`.
            stepped: True if a gradient was finite.

        Raises:
            UserError: a signal had faults and no finite value.
        """
        causes = {UNSTABLE: not stepped, **self._constant_rewards(totals), **self._faulty_signals(totals)}
        for cause, holds in causes.items():
            if not holds:
                self._since.pop(cause, None)
                continue
            since = self._since.setdefault(cause, update)
            updates = update + 1 - since
            never_varied = cause.startswith("reward/") and since == 0 and update > 0
            if never_varied or updates >= UPDATES:
                self._report_cause(cause)

    def _constant_rewards(self, totals: Mapping[str, float]) -> dict[str, bool]:
        """For each reward: no group has differences in it, and not all answers have a reward of 1."""
        causes = {}
        for component, name in zip(self.objective.component_names, self.objective.rewards, strict=False):
            is_constant = not totals[f"informative/{component}"]
            is_perfect = totals[f"sum/{name}"] == totals[f"count/{name}"]
            causes[f"reward/{name}"] = is_constant and not is_perfect
        return causes

    def _faulty_signals(self, totals: Mapping[str, float]) -> dict[str, bool]:
        """For each signal that an answer needed: none of its values is finite."""
        causes = {}
        for name in self.objective.signal_names:
            faults = totals.get(faults_of(name), 0.0)
            finite = totals["answers"] - faults - totals.get(f"inapplicable/{name}", 0.0)
            if finite or faults:  # otherwise no answer needed the signal
                causes[f"faults/{name}"] = not finite
        return causes

    def _report_cause(self, cause: str) -> None:
        kind, _, name = cause.partition("/")
        if kind == "faults":
            raise UserError(
                f"Expected finite values of signal '{name}', but got none in {UPDATES} updates (tag {cause}), try to "
                "mend the function that computes it."
            )
        if cause in self._told:  # a cause that comes and goes would fill the screen
            return
        self._told.add(cause)
        if kind == "reward":
            rank_zero_warn(
                f"The reward '{name}' teaches nothing: since update {self._since[cause]} no two answers to a prompt "
                "differ in it."
            )
        else:
            rank_zero_warn(
                f"The policy learns nothing: since update {self._since[cause]} {cause}. Try a smaller learning rate "
                "or an earlier checkpoint."
            )

    def state_dict(self) -> dict[str, Any]:
        return {"since": dict(self._since)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._since = dict(state["since"])
