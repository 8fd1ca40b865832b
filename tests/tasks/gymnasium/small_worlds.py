"""Worlds that count, and worlds that fail, registered under their names."""

import os
import signal
import sys
import time
from functools import partial
from typing import ClassVar

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv


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


def walks(num_envs, autoreset_mode=AutoresetMode.NEXT_STEP, **kwargs):
    """Walks as a vector environment of Gymnasium's, whose resets take a list of seeds."""
    return SyncVectorEnv([partial(gymnasium.make, "Walk-v0", **kwargs)] * num_envs, autoreset_mode=autoreset_mode)


def other_walks(num_envs, **kwargs):
    """Walks that pay differently from the single world."""
    return gymnasium.wrappers.vector.TransformReward(walks(num_envs, **kwargs), lambda rewards: rewards + 1)


class Odd(gymnasium.Env):
    """Values of many types, which a container with the first one's type would change; the seed shifts their order.

    "counts" pays with the number of steps since it was made, "noisy" with a price that nobody seeded, and "hardens"
    nothing after 20 steps. "huge" pays more than a float holds.
    """

    observation_space = Box(0, 300, (2,), np.float32)

    def __init__(self, kind="values", several=None):
        spaces = {None: Discrete(3, start=1), "discrete": MultiDiscrete([2, 3]), "binary": MultiBinary(3)}
        self.action_space, self.kind, self.taken = spaces[several], kind, 0
        if kind == "exits":
            sys.exit(0)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seed, self.steps = seed, 0
        return np.array([0.1, (options or {}).get("shift", 0)]), {}

    def step(self, action):
        self.steps += 1
        self.taken += 1
        turn = (self.steps + self.seed) % 4
        info = {"cost": [0, 0.5, np.float64(0.25), True][turn], "all": lambda: action}
        if turn:
            info |= {"nested": {"speed": {"x": turn}}, "late": np.int64(2**40 + turn)}
        if self.kind == "dies" and self.steps == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        odd = {"counts": self.taken, "noisy": np.random.default_rng().random(), "huge": 10**400}
        reward = odd.get(self.kind, [1, 0.5][turn % 2])
        if self.kind == "hardens" and self.taken > 20:
            reward = 0
        result = np.array([turn / 3, np.sum(action)]), reward, False, False, info
        return (*result[:2], 0.75, *result[2:]) if self.kind == "six" else result


class Totals(gymnasium.Wrapper):
    """Adds to ``info`` what was paid since the world was made."""

    paid = 0.0

    def step(self, action):
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.paid += float(reward)
        return observation, reward, terminated, truncated, info | {"cost": self.paid}


gymnasium.register("Odd-v0", Odd, max_episode_steps=4, disable_env_checker=True)


class Bright(Walk):
    """Walk in pictures of two by two pixels, whose brightness tells the place."""

    observation_space = Box(0, 255, (2, 2, 1), np.uint8)

    def look(self):
        return np.full((2, 2, 1), np.clip(128 + 40 * self.place, 0, 255), dtype=np.uint8)


gymnasium.register("Bright-v0", Bright, max_episode_steps=6)
