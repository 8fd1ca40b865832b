"""Scenes and candidates whose scores the devkit's own code gave: see devkit_rows.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from driving_scenes.scene import Scene
from navsim_score.provenance import Provenance, scorer_version
from navsim_score.store.preparing import prepared
from navsim_score.store.store import write_store
from tests.driving_scenes.scenes import SPEED, agent, crossing, straight, straight_road

LONG = [step / 2 for step in range(-3, 11)]
"""Until 5 s, which NAVSIM 1.1 looks at."""
WALL = [[4.0 * n, 0.0, 0.0] for n in range(1, 9)]
"""The human drives straight into what stands ahead."""


def scenes() -> Mapping[str, Scene]:
    """Scenes by name, each for one difference between dialects."""
    return {
        "human_hits": straight_road([agent("wall", 24.0, -1.75, times=LONG)], human_trajectory=WALL),
        "human_runs_red": crossing([], human_trajectory=WALL),
        "touching": straight_road([agent("here", 4.0, -1.75, speed=2.0, times=LONG)]),
        "late": straight_road([agent("slow", 42.0, -1.75, speed=0.5, times=LONG)], human_trajectory=None),
        "cones": straight_road([agent("cone", 30.0, -1.75, kind="traffic_cone", size=(0.5, 0.5), times=LONG)]),
    }


MADE = Provenance("hand-made scenes", None, scorer_version(), "")


def store_of(folder: Path, made: Mapping[str, Scene]) -> Provenance:
    """Write a store of scenes, by their keys as tokens."""
    return write_store(folder, (prepared(scene, name=name) for name, scene in made.items()), MADE)


def candidates() -> Tensor:
    """Plans ``[4, 8, 3]``: steady, braking, accelerating, swerving to the left."""
    plans = [straight(), straight(acceleration=-2.0), straight(acceleration=1.5), straight()]
    swerve = plans[-1].clone()
    swerve[:, 1] = torch.linspace(0.0, 1.0, 8).square() * SPEED
    return torch.stack([*plans[:-1], swerve]).double()
