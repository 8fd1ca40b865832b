"""CartPole worlds that step together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.envs.classic_control import utils
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.utils.seeding import np_random


class CartPoles(CartPoleVectorEnv):
    """Gymnasium's CartPoles, each reset from a seed of its own. They equal ``CartPole-v1`` to the last bit.

    Gymnasium resets all of them from one seed.
    """

    def reset(  # type: ignore[override]
        self, *, seed: Sequence[int], options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(options=options)
        low, high = utils.maybe_parse_reset_bounds(options, -0.05, 0.05)
        # The answers of a group have the same seed.
        starts = {number: np_random(number)[0].uniform(low, high, size=4) for number in set(seed)}
        state = np.stack([starts[number] for number in seed], axis=1)  # [4, M]
        self.state = state  # type: ignore[assignment]
        return state.T.astype(np.float32), {}
