"""Wrappers of Gymnasium worlds."""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium.spaces import Discrete

from lightning_cgrpo.core.errors import expect


class FirstActions(gymnasium.ActionWrapper[Any, Any, Any]):
    """Keeps the first `actions` of a world's discrete actions: MiniGrid's first three turn and move the agent."""

    def __init__(self, env: gymnasium.Env[Any, Any], actions: int) -> None:
        super().__init__(env)
        space = env.action_space
        most = int(space.n) if isinstance(space, Discrete) else 0
        expect(1 <= actions <= most, "actions", f"from 1 to the world's discrete actions, {most}", actions)
        assert isinstance(space, Discrete)
        self.action_space = Discrete(actions, start=int(space.start))

    def action(self, action: Any) -> Any:
        return action
