"""Worlds that count, and worlds that fail, registered under their names."""

import time

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete


class Walk(gymnasium.Env):
    """Starts at a random place, moves by the action; ends beyond 3. `fault` happens at the third step."""

    observation_space = Box(-np.inf, np.inf, (2,))

    def __init__(self, continuous=False, fault="none"):
        self.action_space = Box(-0.5, 2.0, (1,)) if continuous else Discrete(3, start=-1)
        self.continuous, self.fault = continuous, fault

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = float(self.np_random.uniform()) + (options or {}).get("shift", 0)
        self.steps = 0
        return self.look(), {}

    def look(self):
        return np.array([self.place, self.steps], dtype=np.float32)

    def step(self, action):
        assert self.action_space.contains(action if self.continuous else int(action)), action
        self.steps += 1
        self.place += float(action[0]) if self.continuous else int(action)
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


gymnasium.register("Walk-v0", Walk, max_episode_steps=6)
gymnasium.register("Endless-v0", Walk)
