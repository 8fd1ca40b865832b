"""Detection of a collapsed policy, a reward that teaches nothing, or a signal that is never finite."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from lightning.pytorch.utilities import rank_zero_warn

from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.objective.objective import Objective

UPDATES = 20
"""Least span of logged updates in which a cause must hold."""
SHARE = 0.01
"""Share of the first entropy, or of the first width of a continuous action, below which a policy is deterministic."""
DETERMINISTIC = f"its entropy, or the width of its actions, is below {SHARE:.0%} of that at the start"
UNINFORMED = "no group has an advantage, so that nothing is learned"
UNSTABLE = "no gradient is finite"


class CollapseDetector:
    """Warns, once per cause, of what held in every logged update of the last 20 updates.

    A policy has collapsed if the mean entropy of its actions is below 1 % of the first update's, or if no gradient was
    finite. The entropy h of D continuous numbers may be negative, so the width exp(h / D) counts in its place. A policy
    has also collapsed if no group has an advantage although an answer violates a constraint or misses a reward of 1.
    A reward teaches nothing if the answers of no group differ in it, and not all have 1.

    A signal without one finite value among its applicable answers trains nothing, and ends training.

    Args:
        action_size: numbers of a continuous action.
    """

    def __init__(self, objective: Objective, action_size: int | None = None) -> None:
        self.objective, self.action_size = objective, action_size
        self._start: float | None = None  # the first entropy
        self._since: dict[str, int] = {}
        self.collapsed_since: int | None = None
        self._told: set[str] = set()

    def check(self, update: int, totals: Mapping[str, float], stepped: bool) -> None:
        """Look at a logged update.

        Args:
            totals: sums of the update over all processes, from `UpdateReport.totals`.
            stepped: True if a gradient was finite.

        Raises:
            UserError: a signal had faults and no finite value.
        """
        causes = {
            DETERMINISTIC: self._deterministic(totals),
            UNINFORMED: not totals["informed"] and not self._succeeds(totals),
            UNSTABLE: not stepped,
            **dict(self._signals(totals)),
        }
        for cause, holds in causes.items():
            if not holds:
                self._since.pop(cause, None)
            elif update + 1 - self._since.setdefault(cause, update) >= UPDATES:
                self._tell(cause)
        collapses = [self._since.get(cause, update) for cause in (DETERMINISTIC, UNINFORMED, UNSTABLE)]
        first = min(collapses)
        self.collapsed_since = first if update + 1 - first >= UPDATES else None

    def _deterministic(self, totals: Mapping[str, float]) -> bool:
        if not totals["entropy weight"]:  # of truncated answers alone
            return False
        entropy = totals["entropy"] / totals["entropy weight"]
        if self._start is None:
            self._start = entropy
        least = SHARE * self._start
        if self.action_size is not None:
            least = self._start + self.action_size * math.log(SHARE)
        return not entropy >= least  # NaN too

    def _succeeds(self, totals: Mapping[str, float]) -> bool:
        for name, constraint in self.objective.constrained.items():
            allowed = constraint.bound.target if constraint.bound.of_mean else 0.0
            if totals[f"violations/{name}"] > allowed * totals[f"opportunities/{name}"]:
                return False
        return all(totals[f"sum/{name}"] == totals[f"count/{name}"] for name in self.objective.rewards)

    def _signals(self, totals: Mapping[str, float]) -> Iterator[tuple[str, bool]]:
        for component, name in zip(self.objective.component_names, self.objective.rewards, strict=False):
            same = not totals[f"informative/{component}"] and totals[f"sum/{name}"] != totals[f"count/{name}"]
            yield f"reward/{name}", same
        for name in self.objective.signal_names:
            faults = totals.get(f"faults/{name}", 0.0)
            finite = totals["answers"] - faults - totals.get(f"inapplicable/{name}", 0.0)
            if finite or faults:  # otherwise no answer needed the signal
                yield f"faults/{name}", not finite

    def _tell(self, cause: str) -> None:
        kind, _, name = cause.partition("/")
        if kind == "faults":
            raise UserError(
                f"Expected finite values of signal '{name}', but got none in {UPDATES} updates (tag {cause}), try to "
                "mend the function that computes it."
            )
        if cause in self._told:  # a policy that comes and goes would fill the screen
            return
        self._told.add(cause)
        if kind == "reward":
            rank_zero_warn(
                f"The reward '{name}' teaches nothing: since update {self._since[cause]} no two answers to a prompt "
                "differ in it."
            )
        else:
            rank_zero_warn(
                f"The policy has collapsed: since update {self._since[cause]} {cause}. Try a smaller learning rate, a "
                "larger kl_weight or entropy_weight, or an earlier checkpoint."
            )

    def state_dict(self) -> dict[str, Any]:
        return {"start": self._start, "since": dict(self._since), "collapsed_since": self.collapsed_since}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if "start" in state:  # not of versions that looked at every update
            self._start, self._since = state["start"], dict(state["since"])
            self.collapsed_since = state["collapsed_since"]
