"""A policy that learns nothing more: it has collapsed, or its reward is the same whatever it answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from lightning_cgrpo.distributed import all_sum, world
from lightning_cgrpo.objective.objective import Components, Objective
from lightning_cgrpo.rollout import Signals

UPDATES = 20
"""Updates in a row that make a collapse, and updates between two looks at the numbers, which wait for the device."""
SHARE = 0.01
"""Of the entropy at the start, below which a policy counts as deterministic."""
COLLAPSES = (
    f"its entropy is below {SHARE:.0%} of that at the start",
    "no group has an advantage, so that nothing is learned",
    "no gradient is finite",
)


class CollapseDetector:
    """Tells what has held for 20 updates in a row, and since which update. Counts are over all processes.

    A policy has collapsed if its entropy is below 1 % of that of the first update; if no group has an advantage
    although an answer misses a constraint or a reward of 1; or if every optimizer step was skipped, because no gradient
    was finite. A reward that is the same in all answers, and not 1, is told as well.

    Args:
        rewards: names of the reward signals.
    """

    def __init__(self, rewards: Sequence[str]) -> None:
        self.rewards = list(rewards)
        self._pending: list[Tensor] = []
        self._start = 0.0
        self._since: list[int | None] = [None] * (len(COLLAPSES) + len(self.rewards))
        self.collapsed_since: int | None = None

    def add(
        self, update: int, entropy: Tensor, advantages: Tensor, constant: Tensor, succeeded: Tensor, stepped: bool
    ) -> None:
        """Note an update; every 20th, look at the last 20. Collective.

        Args:
            entropy: of the update, a scalar.
            advantages: ``[B, G]`` or ``[B, G, T]``.
            constant: see `constant_rewards`.
            succeeded: see `all_succeed`.
            stepped: whether any optimizer step was made.
        """
        flags = [entropy, (advantages != 0).any(), ~succeeded, torch.tensor(stepped), *(~constant)]
        self._pending.append(torch.stack([flag.detach().to(entropy.device, torch.float64) for flag in flags]))
        if (update + 1) % UPDATES:
            return
        first = update + 1 - len(self._pending)
        rows = all_sum(torch.stack(self._pending)).tolist()
        self._pending = []
        for number, (total, informative, failed, steps, *varied) in enumerate(rows, first):
            self._start = self._start or total
            # The negation counts an entropy that is NaN, too.
            deterministic = not total >= SHARE * self._start
            holds = [deterministic, not informative and failed > 0, not steps, *(not count for count in varied)]
            for place, held in enumerate(holds):
                since = self._since[place]
                self._since[place] = (number if since is None else since) if held else None
                if held and since is not None and number + 1 - since == UPDATES:
                    self._tell(place, since)
        held = [since for since in self._since[: len(COLLAPSES)] if since is not None]
        self.collapsed_since = min((since for since in held if update + 1 - since >= UPDATES), default=None)

    def _tell(self, place: int, since: int) -> None:
        if place < len(COLLAPSES):
            rank_zero_warn(
                f"The policy has collapsed: since update {since} {COLLAPSES[place]}. Try a smaller learning rate, a "
                "larger kl_weight or entropy_weight, or an earlier checkpoint."
            )
        else:
            rank_zero_warn(
                f"The reward '{self.rewards[place - len(COLLAPSES)]}' teaches nothing: since update {since} it is the "
                "same in all answers."
            )

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers, for checkpoints: what is noted is added up over all processes. Collective."""
        return {
            "pending": all_sum(torch.stack(self._pending)).tolist() if self._pending else [],
            "start": self._start,
            "since": list(self._since),
            "collapsed_since": self.collapsed_since,
        }

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        if len(state["since"]) != len(self._since):  # of another objective, which begins anew
            return
        # The sum over processes is one process's to give again.
        share = float(world()[0] == 0)
        self._pending = [share * torch.tensor(row, dtype=torch.float64, device=device) for row in state["pending"]]
        self._start, self._since = state["start"], list(state["since"])
        self.collapsed_since = state["collapsed_since"]


def constant_rewards(components: Components, rewards: int) -> Tensor:
    """``[rewards]`` bool, rewards (the first of the components) that are the same in all answers, and not 1."""
    values, applies = components.values[:rewards].flatten(1), components.applicable[:rewards].flatten(1)
    if not values.shape[1]:  # no prompts on this process
        return torch.ones(rewards, dtype=torch.bool, device=values.device)
    highest = torch.where(applies, values, -torch.inf).amax(1)
    lowest = torch.where(applies, values, torch.inf).amin(1)
    return (highest <= lowest) & (highest != 1)


def all_succeed(objective: Objective, signals: Signals, violations: Tensor) -> Tensor:
    """Whether no constraint is violated and every reward is 1; a bool without a shape.

    Args:
        violations: of the enforced constraints, ``[K]``.
    """
    succeeded = ~(violations > 0).any()
    for name in objective.rewards:
        signal = signals[name]
        right = signal.value == 1
        applies = right if signal.applicable is None else right | ~signal.applicable
        succeeded = succeeded & applies.all().to(succeeded.device)
    return succeeded
