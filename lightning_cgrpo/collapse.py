"""A policy that has collapsed: it always answers alike, and learns nothing more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from lightning_cgrpo.distributed import all_sum
from lightning_cgrpo.objective import Objective, SignalKind
from lightning_cgrpo.rollout import Signals

UPDATES = 20
"""Updates in a row that make a collapse, and updates between two looks at the numbers, which wait for the device."""
SHARE = 0.01
"""Of the entropy at the start, below which a policy counts as deterministic."""
REASONS = (
    f"its entropy is below {SHARE:.0%} of that at the start",
    "no group has an advantage, although not all answers succeed",
    "no gradient is finite",
)


class CollapseDetector:
    """Tells when one of three things has held for 20 updates in a row, and since which update.

    The entropy is below 1 % of that of the first update; no group has an advantage although an answer misses a
    constraint, or a reward that is 0 or 1; or every optimizer step was skipped, because no gradient was finite.
    """

    def __init__(self) -> None:
        self._pending: list[Tensor] = []
        self._start = 0.0
        self._since: list[int | None] = [None] * len(REASONS)
        self.collapsed_since: int | None = None

    def add(self, update: int, entropy: Tensor, advantages: Tensor, succeeded: Tensor, stepped: bool) -> None:
        """Note an update; every 20th, look at the last 20. Collective.

        Args:
            entropy: of the update, a scalar.
            advantages: ``[B, G]`` or ``[B, G, T]``.
            succeeded: see `all_succeed`.
            stepped: whether any optimizer step was made.
        """
        flags = (entropy, (advantages != 0).any(), ~succeeded, torch.tensor(stepped))
        self._pending.append(torch.stack([flag.detach().to(entropy.device, torch.float64) for flag in flags]))
        if (update + 1) % UPDATES:
            return
        first = update + 1 - len(self._pending)
        rows = all_sum(torch.stack(self._pending)).tolist()
        self._pending = []
        for number, (total, informative, failed, steps) in enumerate(rows, first):
            self._start = self._start or total
            # The negation counts an entropy that is NaN, too.
            deterministic = not total >= SHARE * self._start
            holds = (deterministic, not informative and failed > 0, not steps)
            self._since = [
                (number if since is None else since) if held else None
                for held, since in zip(holds, self._since, strict=True)
            ]
            self._judge(number)

    def _judge(self, update: int) -> None:
        long = [n for n, since in enumerate(self._since) if since is not None and update + 1 - since >= UPDATES]
        began = None if not long else self._since[long[0]]
        if began is not None and self.collapsed_since is None:
            rank_zero_warn(
                f"The policy has collapsed: since update {began} {REASONS[long[0]]}. Try a smaller learning rate, a "
                "larger kl_weight or entropy_weight, or an earlier checkpoint."
            )
        self.collapsed_since = began

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers, for checkpoints."""
        return {
            "pending": [row.tolist() for row in self._pending],
            "start": self._start,
            "since": list(self._since),
            "collapsed_since": self.collapsed_since,
        }

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        self._pending = [torch.tensor(row, dtype=torch.float64, device=device) for row in state["pending"]]
        self._start, self._since = state["start"], list(state["since"])
        self.collapsed_since = state["collapsed_since"]


def all_succeed(objective: Objective, signals: Signals, kinds: Mapping[str, SignalKind], violations: Tensor) -> Tensor:
    """Whether no constraint is violated, and every reward that is an indicator is 1; a bool without a shape.

    Args:
        kinds: of the task's signals.
        violations: of the enforced constraints, ``[K]``.
    """
    succeeded = ~(violations > 0).any()
    for name in objective.rewards:
        signal = signals[name]
        if kinds.get(name) == "indicator":
            right = signal.value == 1
            applies = right if signal.applicable is None else right | ~signal.applicable
            succeeded = succeeded & applies.all().to(succeeded.device)
    return succeeded
