"""Worlds that count, and worlds that fail, registered under their names."""

import time
from typing import ClassVar

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete


class Walk(gymnasium.Env):
    """Starts at a random place, moves by the action; ends beyond 3. `fault` happens at the third step.

    Its picture is a pixel, as bright as there were steps. "unseeded" starts anywhere, and "drifts" steps anywhere.
    """

    metadata: ClassVar = {"render_modes": ["rgb_array"]}
    observation_space = Box(-np.inf, np.inf, (2,))

    def __init__(self, continuous=False, fault="none", render_mode=None):
        self.action_space = Box(-0.5, 2.0, (1,)) if continuous else Discrete(3, start=-1)
        self.continuous, self.fault, self.render_mode = continuous, fault, render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        draw = np.random.default_rng() if self.fault == "unseeded" else self.np_random
        self.place = float(draw.uniform()) + (options or {}).get("shift", 0)
        self.steps = 0
        return self.look(), {}

    def look(self):
        return np.array([self.place, self.steps], dtype=np.float32)

    def step(self, action):
        assert self.action_space.contains(action if self.continuous else int(action)), action
        self.steps += 1
        self.place += float(action[0]) if self.continuous else int(action)
        if self.fault == "drifts":
            self.place += 0.1 * np.random.default_rng().uniform()
        observation, reward = self.look(), self.place
        if self.steps == 3:
            if self.fault == "raises":
                raise RuntimeError("lost the way")
            if self.fault == "hangs":
                time.sleep(60)
            observation = {"nan": observation * np.nan, "shape": observation[:1]}.get(self.fault, observation)
            reward = {"reward": np.nan, "word": "much"}.get(self.fault, reward)
        ended = self.fault == "at once" or abs(self.place) > 3
        info = {"cost": abs(self.place)} if self.steps % 2 else {}
        return observation, reward, ended, False, info

    def render(self):
        return None if self.fault == "blind" else np.full((1, 1, 3), self.steps, dtype=np.uint8)


gymnasium.register("Walk-v0", Walk, max_episode_steps=6)
gymnasium.register("Endless-v0", Walk)
