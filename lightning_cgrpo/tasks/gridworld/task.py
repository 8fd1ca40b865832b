"""Signals of the gridworld."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from torch import Tensor

from lightning_cgrpo.core.errors import expect
from lightning_cgrpo.core.rollout import PromptGroups, Rollouts, Signal
from lightning_cgrpo.objective.signals import SignalKind
from lightning_cgrpo.tasks.task import Task


class GridworldTask(Task):
    """Signals of `Gridworld`: ``goal``, ``lava`` and ``battery``.

    Args:
        cost: value of lava and battery: violating steps as ``sum``, ``mean`` over steps, or ``indicator`` of any; or
            ``steps``, each step's violation at the step, for a critic.
        rate: share of ``steps`` or of ``episodes`` with a violation.
    """

    signals: Mapping[str, SignalKind] = {"goal": "indicator", "lava": "indicator", "battery": "indicator"}

    def __init__(
        self,
        cost: Literal["sum", "mean", "indicator", "steps"] = "sum",
        rate: Literal["steps", "episodes"] = "steps",
    ) -> None:
        expect(cost in ("sum", "mean", "indicator", "steps"), "cost", "sum, mean, indicator or steps", f"'{cost}'")
        expect(rate in ("steps", "episodes"), "rate", "steps or episodes", f"'{rate}'")
        self.cost = cost
        self.rate = rate

    def score(self, prompts: PromptGroups, rollouts: Rollouts) -> dict[str, Signal]:
        steps = rollouts.lengths.float()
        return {
            "goal": Signal(rollouts.info["goal"].any(-1).float()),
            "lava": self._penalty_signal(rollouts.info["lava"], steps),
            "battery": self._penalty_signal(rollouts.info["battery"], steps),
        }

    def _penalty_signal(self, penalties: Tensor, steps: Tensor) -> Signal:
        total = penalties.sum(-1).float()
        occurred = (total > 0).float()
        values = {"sum": total, "mean": total / steps, "indicator": occurred, "steps": penalties.float()}
        value = values[self.cost]
        if self.rate == "episodes":
            return Signal(value, count=occurred)
        if self.cost == "steps":
            return Signal(value, value)
        # A count apart from the value keeps the paper's cost, the sum.
        return Signal(value, count=total, opportunities=steps)
