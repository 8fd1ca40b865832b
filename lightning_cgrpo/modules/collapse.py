"""Detection of a collapsed policy, a constant reward, or a signal that is never finite."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from lightning_cgrpo.distributed import all_sum, world
from lightning_cgrpo.errors import UserError
from lightning_cgrpo.objective.objective import Components, Objective
from lightning_cgrpo.rollout import Signals

UPDATES = 20
"""Consecutive updates of a collapse, and interval of checks, because a check waits for the device."""
SHARE = 0.01
"""Share of the first entropy, or of the first width of a continuous action, below which a policy is deterministic."""
COLLAPSES = (
    f"its entropy, or the width of its actions, is below {SHARE:.0%} of that at the start",
    "no group has an advantage, so that nothing is learned",
    "no gradient is finite",
)


class CollapseDetector:
    """Warns, once per cause, after 20 consecutive updates of a collapsed policy or a constant reward.

    A policy has collapsed if the mean entropy of its actions is below 1 % of the first update's, or if no gradient was
    finite. The entropy h of D continuous numbers may be negative, so the width exp(h / D) counts in its place. A policy
    has also collapsed if no group has an advantage although an answer violates a constraint or misses a reward of 1.
    A reward is constant if, on every process, all answers of the update have the same value, other than 1.

    A signal without one finite value among its applicable answers trains nothing, and ends training after 20 updates.

    Args:
        rewards: names of signals.
        signals: names of the task's signals that rewards and constraints use.
        action_size: numbers of a continuous action.
    """

    def __init__(self, rewards: Sequence[str], signals: Sequence[str] = (), action_size: int | None = None) -> None:
        self.rewards, self.signals, self.action_size = list(rewards), list(signals), action_size
        self._pending: list[Tensor] = []
        self._start = 0.0
        self._since: list[int | None] = [None] * (len(COLLAPSES) + len(self.rewards) + len(self.signals))
        self.collapsed_since: int | None = None
        self._told: set[int] = set()

    def add(
        self,
        update: int,
        entropy: Tensor,
        advantages: Tensor,
        constant: Tensor,
        succeeded: Tensor,
        stepped: bool,
        values: Tensor,
    ) -> None:
        """Add an update; every 20th update, check the last 20. The check is collective.

        Args:
            update: number from 0.
            entropy: ``[2]``, a weighted sum of the entropies of actions, and the sum of the weights.
            advantages: ``[B, G]`` or ``[B, G, T]``.
            constant: see `constant_rewards`.
            succeeded: see `all_succeed`.
            stepped: True if a gradient was finite.
            values: see `finite_values`.

        Raises:
            UserError: a signal had faults and no finite value.
        """
        step = torch.full((), stepped, device=entropy.device)
        flags = [*entropy, (advantages != 0).any(), ~succeeded, step, *(~constant), *values.flatten()]
        self._pending.append(torch.stack([flag.detach().to(entropy.device, torch.float64) for flag in flags]))
        if (update + 1) % UPDATES:
            return
        first = update + 1 - len(self._pending)
        rows = all_sum(torch.stack(self._pending)).tolist()
        self._pending = []
        for number, (total, weight, informative, failed, steps, *counts) in enumerate(rows, first):
            varied, counts = counts[: len(self.rewards)], counts[len(self.rewards) :]
            finite, faulty = counts[: len(self.signals)], counts[len(self.signals) :]
            # Without a weight, as of truncated answers alone, the entropy is unknown.
            mean = total / weight if weight else self._start
            self._start = self._start or mean
            least = SHARE * self._start
            if self.action_size is not None:
                least = self._start + self.action_size * math.log(SHARE)
            # The negation counts NaN too.
            deterministic = not mean >= least
            holds = [deterministic, not informative and failed > 0, not steps, *(not count for count in varied)]
            # None of the answers may need the signal in an update.
            holds += [not count if count or faults else None for count, faults in zip(finite, faulty, strict=True)]
            for place, held in reversed(list(enumerate(holds))):  # errors before warnings
                since = self._since[place]
                if held is None:
                    continue
                self._since[place] = (number if since is None else since) if held else None
                if held and since is not None and number + 1 - since == UPDATES:
                    self._tell(place, since)
        held = [since for since in self._since[: len(COLLAPSES)] if since is not None]
        self.collapsed_since = min((since for since in held if update + 1 - since >= UPDATES), default=None)

    def _tell(self, place: int, since: int) -> None:
        if place in self._told:  # a policy that comes and goes would fill the screen
            return
        self._told.add(place)
        if place < len(COLLAPSES):
            rank_zero_warn(
                f"The policy has collapsed: since update {since} {COLLAPSES[place]}. Try a smaller learning rate, a "
                "larger kl_weight or entropy_weight, or an earlier checkpoint."
            )
        elif place - len(COLLAPSES) >= len(self.rewards):
            signal = self.signals[place - len(COLLAPSES) - len(self.rewards)]
            raise UserError(
                f"Expected finite values of signal '{signal}', but got none in {UPDATES} updates (tag "
                f"faults/{signal}), try to mend the function that computes it."
            )
        else:
            rank_zero_warn(
                f"The reward '{self.rewards[place - len(COLLAPSES)]}' teaches nothing: since update {since} it is the "
                "same in all answers."
            )

    def state_dict(self) -> dict[str, Any]:
        return {
            "pending": all_sum(torch.stack(self._pending)).tolist() if self._pending else [],
            "mean_entropy": self._start,
            "since": list(self._since),
            "collapsed_since": self.collapsed_since,
        }

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        # Of another objective, or of a version that summed the entropy over optimizer steps.
        if len(state["since"]) != len(self._since) or "mean_entropy" not in state:
            return
        # The first process holds the sum over processes.
        share = float(world()[0] == 0)
        self._pending = [share * torch.tensor(row, dtype=torch.float64, device=device) for row in state["pending"]]
        self._start, self._since = state["mean_entropy"], list(state["since"])
        self.collapsed_since = state["collapsed_since"]


def constant_rewards(components: Components, rewards: int) -> Tensor:
    """``[rewards]`` bool, rewards that are the same in all answers, and not 1."""
    values, applies = components.values[:rewards].flatten(1), components.applicable[:rewards].flatten(1)
    if not values.shape[1]:  # no prompts on this process
        return torch.ones(rewards, dtype=torch.bool, device=values.device)
    highest = torch.where(applies, values, -torch.inf).amax(1)
    lowest = torch.where(applies, values, torch.inf).amin(1)
    return (highest <= lowest) & (highest != 1)


def finite_values(names: Sequence[str], signals: Signals, faults: Mapping[str, Tensor]) -> Tensor:
    """``[2, len(names)]`` float64, applicable answers with a finite value, and with a fault.

    Args:
        faults: from `isolate_faults`.
    """
    finite = []
    for name in names:
        value, applicable = signals[name].value, signals[name].applicable
        finite.append(value.new_full((), value.shape[:2].numel()) if applicable is None else applicable.sum())
    if not finite:
        return torch.zeros(2, 0)
    device = finite[0].device
    rows = [torch.stack([count.double().to(device) for count in finite])]
    return torch.stack([*rows, torch.stack([faults[name].sum().double().to(device) for name in names])])


def all_succeed(objective: Objective, signals: Signals, violations: Tensor, opportunities: Tensor) -> Tensor:
    """True if no answer violates a rate, all means meet their bounds, and every reward is 1; scalar bool.

    Args:
        violations: ``[K]``, and `opportunities` likewise.
    """
    allowed = [c.bound.target if c.bound.of_mean else 0.0 for c in objective.constrained.values()]
    highest = torch.tensor(allowed, dtype=torch.float64, device="cpu").to(opportunities.device, non_blocking=True)
    device = signals[next(iter(objective.rewards))].value.device  # counts of no constraint are on the CPU
    succeeded = (~(violations > opportunities * highest).any()).to(device, non_blocking=True)
    for name in objective.rewards:
        signal = signals[name]
        right = signal.total == 1
        applies = right if signal.applicable is None else right | ~signal.applicable
        succeeded = succeeded & applies.all()
    return succeeded
