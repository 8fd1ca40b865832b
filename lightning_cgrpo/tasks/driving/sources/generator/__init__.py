"""Scenes without end, drawn from random numbers: roads, traffic, people, and a human who drives sensibly among them."""

from __future__ import annotations

from typing import get_args

import numpy as np

from lightning_cgrpo.errors import UserError
from lightning_cgrpo.tasks.driving.scene import Scene
from lightning_cgrpo.tasks.driving.sources import Scenes, SceneSource, Split
from lightning_cgrpo.tasks.driving.sources.generator.scenes import generate


class GeneratedScenes(SceneSource):
    """Generated scenes. Scene i of a split depends on the seed, the split and i alone, and is a log by itself.

    Args:
        seed: of all scenes.
        count: scenes of each split; there are always more.

    Raises:
        UserError: a number is negative.
    """

    def __init__(self, seed: int = 0, count: int = 1_000_000) -> None:
        for name, value in (("seed", seed), ("count", count)):
            if value < 0:
                raise UserError(f"Expected argument `{name}` to be at least 0, but got {value}.")
        self.seed, self.count = seed, count

    def scenes(self, split: Split) -> Scenes[int]:
        number = get_args(Split).index(split)

        def scene(index: int) -> Scene:
            return generate(np.random.default_rng((self.seed, number, index)), f"generated_{split}_{self.seed}_{index}")

        return Scenes(range(self.count), scene)
