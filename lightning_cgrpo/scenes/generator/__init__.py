"""Scenes without end, drawn from random numbers: roads, traffic, people, and a human who drives sensibly among them."""

from __future__ import annotations

from typing import get_args

import numpy as np

from lightning_cgrpo.errors import UserError
from lightning_cgrpo.scenes.generator.follow_ups import Continuation, Start
from lightning_cgrpo.scenes.generator.scenes import World, generate
from lightning_cgrpo.scenes.scene import Scene
from lightning_cgrpo.scenes.source import Scenes, SceneSource, Split

WITHOUT_END = 1_000_000
"""Scenes of a split whose number nobody has said."""
AFTERWARDS = 1
"""Ends the key of the random numbers that follow-ups take, which are so not those of their scene."""


class GeneratedScenes(SceneSource):
    """Generated scenes. Scene i of a split depends on the seed, the split and i alone, and is a log by itself.

    Args:
        seed: of all scenes.
        count: scenes of each split; by default more than anyone takes, so that who takes them must say how many.
        follow_ups: scenes of the second stage for each; none where the map ends too early.

    Raises:
        UserError: a number is negative.
    """

    def __init__(self, seed: int = 0, count: int | None = None, follow_ups: int = 4) -> None:
        for name, value in (("seed", seed), ("count", count), ("follow_ups", follow_ups)):
            if value is not None and value < 0:
                raise UserError(f"Expected argument `{name}` to be at least 0, but got {value}.")
        self.endless = count is None
        self.seed, self.count, self.follow_up_count = seed, WITHOUT_END if count is None else count, follow_ups

    def scenes(self, split: Split) -> Scenes[int, Scene]:
        def scene(index: int) -> Scene:
            return generate(self._random(split, index), self._name(split, index))

        return Scenes(range(self.count), scene)

    def follow_ups(self, split: Split) -> Scenes[int, Scenes[tuple[int, Start], Scene]]:
        def after(index: int) -> Scenes[tuple[int, Start], Scene]:
            log = self._name(split, index)
            continuation = Continuation.of(World.random(self._random(split, index)))
            count = self.follow_up_count if continuation.goes_on else 0
            starts = continuation.starts(self._random(split, index, AFTERWARDS), count)

            def scene(key: tuple[int, Start]) -> Scene:
                number, start = key
                return continuation.scene(start, f"{log}_after_{number}", log)

            return Scenes(list(enumerate(starts)), scene)

        return Scenes(range(self.count), after)

    def _random(self, split: Split, index: int, *more: int) -> np.random.Generator:
        return np.random.default_rng((self.seed, get_args(Split).index(split), index, *more))

    def _name(self, split: Split, index: int) -> str:
        return f"generated_{split}_{self.seed}_{index}"
