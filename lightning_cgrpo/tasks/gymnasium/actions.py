"""Actions of Gymnasium worlds: numbers of a policy become what the world takes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space

from lightning_cgrpo.core.errors import UserError

MOST = 10_000
"""Largest number of combined discrete actions."""


class Actions:
    """The policy's actions of a space.

    Several discrete actions at once (MultiDiscrete, MultiBinary) are one action of the policy: the number of their
    combination, the last action running fastest.

    Attributes:
        count: discrete actions of the policy; None if continuous.
        size: numbers of a continuous action; None if discrete.
        low: lower bounds of a continuous action; None if unbounded.
        high: upper bounds.

    Raises:
        UserError: the space is of another kind, bounded on some sides, or has too many combinations.
    """

    def __init__(self, space: Space[Any], world: str) -> None:
        self.count: int | None = None
        self.size: int | None = None
        self.low: tuple[float, ...] | None = None
        self.high: tuple[float, ...] | None = None
        self._first: Any = 0
        self._shape: tuple[int, ...] | None = None
        if isinstance(space, Discrete):
            self.count = int(space.n)
            self._first = int(space.start)
        elif isinstance(space, (MultiDiscrete, MultiBinary)) and len(space.shape) == 1:
            sizes = np.full(space.shape, 2)
            if isinstance(space, MultiDiscrete):
                sizes = space.nvec
                self._first = space.start
            self._shape = tuple(map(int, sizes))
            self.count = math.prod(self._shape)
            if self.count > MOST:
                raise UserError(
                    f"Expected at most {MOST:,} combinations of the actions of '{world}', but got {self.count:,}, try "
                    "a wrapper that leaves some out."
                )
        elif isinstance(space, Box) and len(space.shape) == 1:
            self.size = space.shape[0]
            low = tuple(map(float, space.low))
            high = tuple(map(float, space.high))
            is_finite = [math.isfinite(bound) for bound in (*low, *high)]
            if all(is_finite):
                self.low = low
                self.high = high
            elif any(is_finite):
                raise UserError(
                    f"Expected actions of '{world}' to be bounded on all sides or on none, but got {space}, try "
                    "wrappers: [{gymnasium.wrappers.RescaleAction: {min_action: -1, max_action: 1}}]."
                )
        else:
            raise UserError(
                f"Expected actions of '{world}' to be Discrete, MultiDiscrete, MultiBinary or a Box, of one dimension, "
                f"but got {space}, try a wrapper."
            )

    def of_world(self, actions: np.ndarray) -> np.ndarray:
        """The world's actions ``[N]`` or ``[N, D]`` from the policy's ``[N]`` or ``[N, D]``."""
        if self._shape is not None:
            actions = np.stack(np.unravel_index(actions, self._shape), axis=-1)
        if self.size is not None:
            return actions
        return actions + self._first
