"""Detection of signals that never have a finite value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from lightning_cgrpo.distributed import all_sum
from lightning_cgrpo.errors import UserError
from lightning_cgrpo.rollout import Signals

BLOCK = 10
"""Updates between two looks, because a look waits for all processes and the device."""
BLOCKS = 2


class FaultDetector:
    """Ends training after `BLOCK` * `BLOCKS` updates without one finite value among a signal's applicable answers.

    Such a signal trains nothing: its answers enter no advantage and no rate.

    Args:
        names: signals of rewards and constraints.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self._updates = 0
        self._sums: Tensor | None = None  # [2, len(names)], finite and faulty answers of the block
        self._barren: Counter[str] = Counter()  # blocks in a row

    def add(self, signals: Signals, faults: Mapping[str, Tensor]) -> None:
        """Count an update's answers. Collective.

        Args:
            faults: of `isolate_faults`, ``[B]`` by signal.

        Raises:
            UserError: a signal had faults and no finite value in all of the last blocks.
        """
        measured = [name for name in self.names if name in signals]
        if not measured:
            return
        sums = torch.stack([_counts(signals, faults, name) for name in measured], dim=1)
        self._sums = sums if self._sums is None else self._sums + sums
        self._updates += 1
        if self._updates % BLOCK:
            return
        finite, faulty = all_sum(self._sums).tolist()
        self._sums = None
        for name, values, errors in zip(measured, finite, faulty, strict=True):
            if values:
                self._barren[name] = 0
            elif errors:
                self._barren[name] += 1
            if self._barren[name] == BLOCKS:
                raise UserError(
                    f"Expected finite values of signal '{name}', but got none in {BLOCK * BLOCKS} updates (tag "
                    f"faults/{name}), try to mend the function that computes it."
                )


def _counts(signals: Signals, faults: Mapping[str, Tensor], name: str) -> Tensor:
    """Answers with a finite value, and answers with a fault, ``[2]``."""
    signal = signals[name]
    value = signal.value
    answers = value.new_ones(value.shape[:2]) if signal.applicable is None else signal.applicable
    faulty = faults[name] if name in faults else answers.new_zeros(1)
    return torch.stack([answers.sum().double(), faulty.sum().double().to(answers.device)])
