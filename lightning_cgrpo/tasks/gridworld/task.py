"""Signals of the gridworld."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from torch import Tensor

from lightning_cgrpo.objective.objective import SignalKind
from lightning_cgrpo.rollout import PromptGroups, Rollouts, Signal
from lightning_cgrpo.tasks.task import Task


class GridworldTask(Task):
    """Signals: ``goal`` (reached it), ``lava`` (stood on it), ``battery`` (ran low).

    Args:
        cost: what enters the advantage for lava and battery: the episode's ``sum`` of penalties, its ``mean`` over
            steps, or the ``indicator`` that there was any.
        rate: what the rate counts: ``steps`` in violation among all steps, or ``episodes`` with any violation.
    """

    signals: Mapping[str, SignalKind] = {"goal": "indicator", "lava": "indicator", "battery": "indicator"}

    def __init__(
        self,
        cost: Literal["sum", "mean", "indicator"] = "sum",
        rate: Literal["steps", "episodes"] = "steps",
    ) -> None:
        if cost not in ("sum", "mean", "indicator"):
            raise ValueError(f"Expected argument `cost` to be sum, mean or indicator, but got '{cost}'.")
        if rate not in ("steps", "episodes"):
            raise ValueError(f"Expected argument `rate` to be steps or episodes, but got '{rate}'.")
        self.cost, self.rate = cost, rate

    def score(self, prompts: PromptGroups, rollouts: Rollouts) -> dict[str, Signal]:
        steps = rollouts.lengths.float()
        return {
            "goal": Signal(rollouts.info["goal"].any(-1).float()),
            "lava": self._penalty(rollouts.info["lava"], steps),
            "battery": self._penalty(rollouts.info["battery"], steps),
        }

    def _penalty(self, penalties: Tensor, steps: Tensor) -> Signal:
        total = penalties.sum(-1).float()
        occurred = (total > 0).float()
        value = {"sum": total, "mean": total / steps, "indicator": occurred}[self.cost]
        if self.rate == "episodes":
            return Signal(value, count=occurred)
        return Signal(value, count=total, opportunities=steps)
