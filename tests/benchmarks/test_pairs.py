"""Counterfactual pairs differ by the agents that enter the lane, and by the human's drive."""

import torch

from benchmarks.navsim.pairs import SHORTER, PairedScenes
from driving_scenes.generator import GeneratedScenes
from lightning_cgrpo.tasks.driving.moving_observations import MovingObservations


def test_the_human_heeds_the_agent_that_only_one_scene_has():
    scenes = PairedScenes(seed=6, count=8).scenes("train")
    for even in range(0, 8, 2):
        scene, without = scenes[even], scenes[even + 1]
        assert torch.equal(scene.ego.poses, without.ego.poses) and torch.equal(
            scene.ego.velocities, without.ego.velocities
        )
        assert "In: none" not in MovingObservations()(scene)
        assert "In: none" in MovingObservations()(without)
        left = {tuple(size) for size in without.agents.sizes.tolist()}
        assert left < {tuple(size) for size in scene.agents.sizes.tolist()}
        assert without.human[-1, :2].norm() > scene.human[-1, :2].norm() + SHORTER / 2  # chords of curved paths
        assert scene.log == without.log != scenes[(even + 2) % 8].log


def test_other_splits_are_those_of_generated_scenes():
    ours, theirs = PairedScenes(seed=6).scenes("val")[3], GeneratedScenes(seed=6).scenes("val")[3]
    assert ours.name == theirs.name and torch.equal(ours.human, theirs.human)
