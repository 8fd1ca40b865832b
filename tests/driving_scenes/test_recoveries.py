"""Recoveries: the ego starts beside its path, and the human returns to it."""

import numpy as np
import pytest

from driving_scenes.generator import GeneratedScenes
from driving_scenes.generator.curve import Curve
from driving_scenes.generator.human_drive import HumanDrive
from driving_scenes.generator.world import human_future
from tests.driving_scenes.test_generator import humans_score, same


@pytest.mark.slow
def test_a_share_of_the_training_scenes() -> None:
    usual, mixed = GeneratedScenes(seed=5), GeneratedScenes(seed=5, recoveries=0.5)
    kept = [same(usual.scenes("train")[number], mixed.scenes("train")[number]) for number in range(40)]
    assert 10 <= sum(kept) <= 30
    assert same(usual.scenes("test")[3], mixed.scenes("test")[3])
    changed = mixed.scenes("train")[kept.index(False)]
    assert changed.human is not None and not changed.synthetic
    assert same(changed, GeneratedScenes(seed=5, recoveries=0.5).scenes("train")[kept.index(False)])


@pytest.mark.parametrize("speed", [2.0, 10.0])
def test_the_human_leaves_as_the_ego_heads_and_ends_on_the_path(speed: float) -> None:
    path = Curve.curved(np.full(1000, 0.01))
    driven = HumanDrive(20 + speed * 0.25 * np.arange(17), (speed, 0.0), (speed, 0.0), np.zeros(0, dtype=bool))
    left, heading = 0.5, -0.1
    x, y, yaw = path.at(20.0, left)
    poses = human_future(path, driven, left, heading).numpy()
    cos, sin = np.cos(yaw + heading), np.sin(yaw + heading)
    places = np.stack([x + cos * poses[:, 0] - sin * poses[:, 1], y + sin * poses[:, 0] + cos * poses[:, 1]], 1)
    beside = np.abs(path.project(places)[:, 1])
    back = driven.s[2::2] - 20 >= max(6.0, speed)
    # Poses are relative to the direction along the offset path, of which a bend changes the slope by a hundredth.
    assert back.any() and beside[back].max() < 0.03
    assert (beside[:3] < 0.5).all() if speed > 5 else beside[0] > 0.2
    on_path = path.project(places)[:, 0]
    turned = np.interp(on_path, path.s, path.yaw) - (yaw + heading)
    assert poses[back, 2] == pytest.approx(turned[back], abs=0.01)


def test_a_start_on_the_path_is_an_ordinary_drive() -> None:
    path = Curve.curved(np.full(400, 0.02))
    driven = HumanDrive(5 + 2.0 * np.arange(17), (8.0, 0.0), (8.0, 0.0), np.zeros(0, dtype=bool))
    pose, later = path.at(driven.s[0]), path.at(driven.s[2::2])
    turn = np.array([[np.cos(pose[2]), -np.sin(pose[2])], [np.sin(pose[2]), np.cos(pose[2])]])
    expected = np.concatenate([(later - pose)[:, :2] @ turn, (later - pose)[:, 2:]], 1)
    assert human_future(path, driven).numpy() == pytest.approx(expected)


def test_the_human_drives_as_well_as_the_start_allows() -> None:
    assert humans_score(list(GeneratedScenes(seed=5, count=20, recoveries=1.0).scenes("train"))) > 0.75
