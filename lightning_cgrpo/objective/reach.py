"""Rates within reach: if the best of each prompt's answers were chosen."""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_cgrpo.distributed import all_sum_named
from lightning_cgrpo.objective.measurement import clustered_rates, moments
from lightning_cgrpo.objective.objective import Objective
from lightning_cgrpo.objective.subsets import key
from lightning_cgrpo.rollout import Signals, over_steps
from lightning_cgrpo.verdicts.clustered import ClusteredRate

EVERY = "every threshold"
"""Name of the rate of prompts without an answer that meets the thresholds of all enforced constraints."""


class Reach:
    """Adds batches of groups; `rates` combines all processes."""

    def __init__(self, objective: Objective) -> None:
        self.objective = objective
        self._batches: list[dict[str, Tensor]] = []

    def add(self, signals: Signals) -> None:
        """Choose each prompt's best answer by constraint: the least count - d * opportunities.

        If these choices violate a threshold d, no other choice of answers meets it.
        """
        rows: dict[str, Tensor] = {}
        meets: Tensor | None = None
        for name, constraint in self.objective.bounded.items():
            if name in self.objective.own:
                continue
            counts = constraint.violations(signals[key(name, constraint)])
            violations, opportunities = (over_steps(count).double() for count in counts)  # [B, G]
            excess = violations - constraint.bound.target * opportunities
            best = excess.argmin(-1, keepdim=True)
            rows[f"violations/{name}"] = violations.gather(-1, best).squeeze(-1)
            rows[f"opportunities/{name}"] = opportunities.gather(-1, best).squeeze(-1)
            if constraint.role == "constrain":
                meets = excess <= 0 if meets is None else meets & (excess <= 0)
        if meets is not None:
            none = ~meets.any(-1)
            rows |= {f"violations/{EVERY}": none.double(), f"opportunities/{EVERY}": torch.ones_like(none).double()}
        self._batches.append(rows)

    def rates(self) -> dict[str, ClusteredRate]:
        """Rates of violation of the best answers, by constraint, and `EVERY`. Collective."""
        if not self._batches or not self._batches[0]:
            return {}
        rows = {name: torch.cat([batch[name] for batch in self._batches]) for name in self._batches[0]}
        names = [name.removeprefix("violations/") for name in rows if name.startswith("violations/")]
        return clustered_rates(
            names,
            all_sum_named({n: row.sum() for n, row in rows.items()} | moments(names, rows)),
            self.objective.means,
        )
