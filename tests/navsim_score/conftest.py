"""The official scores in the shared data."""

import json
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from driving_scenes.scene import Scene
from driving_scenes.scene_file import read_scene


class Case(NamedTuple):
    scene: Scene
    official: dict[str, Any]
    poses: Tensor
    """Of its candidates."""

    @property
    def start(self) -> Tensor:
        """The ego's pose, velocity and acceleration."""
        ego = self.scene.ego
        return torch.cat([ego.poses[-1], ego.velocities[-1], ego.accelerations[-1]])


@pytest.fixture(scope="session")
def official_cases(shared_data) -> dict[str, Case]:
    """By name."""
    found = {}
    for file in sorted((shared_data / "driving/cases").glob("*.official.json")):
        official, name = json.loads(file.read_text()), file.name.removesuffix(".official.json")
        poses = torch.tensor([each["poses"] for each in official["trajectories"]], dtype=torch.float64)
        found[name] = Case(read_scene(file.with_name(f"{name}.scene.json")), official, poses)
    assert found
    return found
