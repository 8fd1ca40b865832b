"""Endless scenes from random numbers."""

from __future__ import annotations

from typing import get_args

import numpy as np

from driving_scenes.errors import InputError
from driving_scenes.generator.continuation import Continuation, Start
from driving_scenes.generator.world import World
from driving_scenes.scene import Scene
from driving_scenes.source import Scenes, SceneSource, Split, WithoutEnd

AFTERWARDS = 1
"""Separates a follow-up's random numbers."""
RECOVERY = 2
"""Separates a recovery's random numbers."""


class GeneratedScenes(SceneSource):
    """Scenes determined by seed, split and index alone. Every scene is a log of its own.

    Args:
        seed: seed of all scenes.
        count: scenes of each split; unbounded by default.
        follow_ups: second-stage scenes per scene; none if the road ends too soon.
        recoveries: share of the training scenes whose ego starts beside its path, as in follow-ups; the human returns.
    """

    def __init__(self, seed: int = 0, count: int | None = None, follow_ups: int = 4, recoveries: float = 0.0) -> None:
        for name, value in (("seed", seed), ("count", count), ("follow_ups", follow_ups)):
            if value is not None and value < 0:
                raise InputError(f"Expected argument `{name}` to be at least 0, but got {value}.")
        if not 0 <= recoveries <= 1:
            raise InputError(f"Expected argument `recoveries` to be in [0, 1], but got {recoveries}.")
        self.endless = count is None
        self.recoveries = recoveries
        self.seed = seed
        self.follow_up_count = follow_ups
        self.indices = WithoutEnd() if count is None else range(count)

    def scenes(self, split: Split) -> Scenes[int, Scene]:
        def build_scene(index: int) -> Scene:
            world = self._world(split, index)
            name = self._name(split, index)
            if split == "train" and self.recoveries:
                rng = self._random(split, index, RECOVERY)
                if rng.random() < self.recoveries:
                    continuation = Continuation.of(world)
                    if continuation.goes_on:
                        (start,) = continuation.starts(rng, 1)
                        return continuation.recovery(start, name)
            return world.first_scene(name)

        return Scenes(self.indices, build_scene)

    def next_frames(self, split: Split) -> Scenes[int, Scene]:
        def build_next_scene(index: int) -> Scene:
            return self._world(split, index).next_scene(self._name(split, index))

        return Scenes(self.indices, build_next_scene)

    def follow_ups(self, split: Split) -> Scenes[int, Scenes[tuple[int, Start], Scene]]:
        def build_group(index: int) -> Scenes[tuple[int, Start], Scene]:
            log = self._name(split, index)
            continuation = Continuation.of(self._world(split, index))
            count = self.follow_up_count if continuation.goes_on else 0
            starts = continuation.starts(self._random(split, index, AFTERWARDS), count)

            def build_follow_up(key: tuple[int, Start]) -> Scene:
                number, start = key
                return continuation.scene(start, f"{log}_after_{number}", log)

            return Scenes(list(enumerate(starts)), build_follow_up)

        return Scenes(self.indices, build_group)

    def _world(self, split: Split, index: int) -> World:
        return World.random(self._random(split, index))

    def _random(self, split: Split, index: int, *more: int) -> np.random.Generator:
        return np.random.default_rng((self.seed, get_args(Split).index(split), index, *more))

    def _name(self, split: Split, index: int) -> str:
        return f"generated_{split}_{self.seed}_{index}"
