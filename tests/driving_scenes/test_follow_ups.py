"""Generated scenes of the second stage: the same world 4 s later, with the ego not quite where it should be."""

import numpy as np
import pytest
import torch

from driving_scenes.generator import GeneratedScenes
from driving_scenes.generator.agent import overlapping
from driving_scenes.scene import Scene
from driving_scenes.vehicle import LENGTH, WIDTH, centers
from navsim_score.evaluation import constant_velocity
from navsim_score.expert.pdm_closed import plan
from navsim_score.scorer import Scorer
from navsim_score.simulation.interpolation import in_ego, in_scene
from tests.driving_scenes.test_generator import same, sums

COUNT = 16


@pytest.fixture(scope="module")
def pairs() -> list[tuple[Scene, list[Scene]]]:
    source = GeneratedScenes(seed=3, count=COUNT)
    return list(zip(source.scenes("test"), map(list, source.follow_ups("test")), strict=True))


@pytest.fixture(scope="module")
def after(pairs: list[tuple[Scene, list[Scene]]]) -> list[Scene]:
    return [scene for _, group in pairs for scene in group]


def test_they_are_those_of_the_committed_results(after: list[Scene]) -> None:
    """Sums of absolute values; a change that is meant to change follow-ups writes new ones, and the results again."""
    expected = {"ego.poses": 215360.1171, "ego.velocities": 1155.389574, "agents.states": 7869963.314}
    assert sums(after, expected) == pytest.approx(expected, rel=1e-5)


def test_they_depend_on_their_numbers_alone(pairs: list[tuple[Scene, list[Scene]]]) -> None:
    source = GeneratedScenes(seed=3)
    for index in (12, 2):
        assert all(map(same, source.follow_ups("test")[index], pairs[index][1]))
    assert not same(GeneratedScenes(seed=3).follow_ups("val")[2][0].ego, pairs[2][1][0].ego)
    assert len({scene.name for _, group in pairs for scene in group}) == sum(len(group) for _, group in pairs)


def test_the_world_is_the_same(pairs: list[tuple[Scene, list[Scene]]]) -> None:
    for first, group in pairs:
        for scene in group:
            assert scene.synthetic
            assert scene.human is None
            assert scene.log == first.log
            assert same(scene.map, first.map)
            assert set(scene.route) <= set(first.route)
            # The last light of the first stage is the first one of the second.
            assert torch.equal(scene.lights.red[:1], first.lights.red[8:9])
            # Whoever is seen in both, 2.5 to 4 s after the first stage's beginning, is the same one at the same place.
            known = first.agents.states[:, 8:][first.agents.seen[:, 8:].all(1)]
            seen = scene.agents.states[:, :4][scene.agents.seen[:, :4].all(1)]
            gaps = (known[:, None] - seen[None]).abs().amax((2, 3)) if len(seen) and len(known) else torch.zeros(0, 0)
            assert int((gaps < 1e-9).any(0).sum()) == int((gaps.flatten(1).amin(0) < 1.0).sum()) if len(gaps) else True


def test_traffic_goes_on_where_it_was(pairs: list[tuple[Scene, list[Scene]]]) -> None:
    """Most of who is near the ego at 4 s is in the next scene, at exactly that place and speed."""
    there = []
    for first, group in pairs:
        for scene in group[:1]:
            now = first.agents.states[:, 11][first.agents.seen[:, 11]]
            near = now[(now[:, :2] - scene.ego.poses[-1, :2]).norm(dim=1) < 60]
            later = scene.agents.states[:, 3][scene.agents.seen[:, 3]]
            for state in near:
                there.append(bool(len(later)) and float((later - state).abs().amax(1).min()) < 1e-9)
    assert sum(there) > 50 and np.mean(there) > 0.9


def test_egos_are_perturbed_around_where_the_human_was(pairs: list[tuple[Scene, list[Scene]]]) -> None:
    left, along, turned = [], [], []
    for first, group in pairs:
        assert first.human is not None
        human = in_scene(first.ego.poses[-1], first.human[-1])
        for scene in group:
            pose = in_ego(human, scene.ego.poses[-1])
            way = float(first.human[:, :2].norm(dim=1).max())
            assert -0.25 * way - 2 < float(pose[0]) < 0.1 * way + 2
            along.append(float(pose[0]))
            left.append(float(pose[1]))
            turned.append(float(pose[2]))
    assert np.std(along) > 1
    assert np.std(left) > 0.15
    assert 0.01 < np.std(turned) < 0.3


def test_histories_are_consistent(after: list[Scene]) -> None:
    """Places change as speeds say, and cars drive where they point."""
    for scene in after:
        ego = scene.ego
        steps = ego.poses[1:, :2] - ego.poses[:-1, :2]
        speeds = ego.velocities[:, 0]
        assert float(speeds.min()) >= 0
        assert bool((ego.velocities[:, 1] == 0).all())
        torch.testing.assert_close(steps.norm(dim=1), (speeds[1:] + speeds[:-1]) / 4, rtol=0.02, atol=0.05)
        gained = (ego.accelerations[1:, 0] + ego.accelerations[:-1, 0]) / 4
        torch.testing.assert_close(speeds.diff(), gained, rtol=0, atol=0.05)
        moving = steps.norm(dim=1) > 1
        middle = (ego.poses[1:, 2] + ego.poses[:-1, 2]) / 2
        off = (torch.atan2(steps[:, 1], steps[:, 0]) - middle).sin().abs()
        assert float(off[moving].max() if bool(moving.any()) else 0) < 0.03


def test_nobody_is_where_an_ego_starts(after: list[Scene]) -> None:
    for scene in after:
        center = np.append(centers(scene.ego.poses[-1]), scene.ego.poses[-1, 2])
        seen = scene.agents.seen[:, 3]
        boxes = scene.agents.states[seen, 3, :3].numpy()
        sizes = scene.agents.sizes[seen, :2].numpy()
        assert not overlapping(center, np.array([LENGTH, WIDTH]), boxes, sizes).any()


def test_the_next_frame_goes_on_where_the_human_is() -> None:
    source = GeneratedScenes(seed=3, count=12)
    for first, following in zip(source.scenes("train"), source.next_frames("train"), strict=True):
        assert (following.previous, following.log) == (first.name, first.log) and same(following.map, first.map)
        assert first.human is not None and following.human is not None
        here = in_scene(first.ego.poses[-1], first.human)
        torch.testing.assert_close(following.ego.poses[-1], here[0], rtol=0, atol=0.02)
        there = in_scene(following.ego.poses[-1], following.human)
        torch.testing.assert_close(there[:-1, :2], here[1:, :2], rtol=0, atol=0.02)
        seen, later = first.agents.states[first.agents.seen[:, 4], 4], following.agents.states[:, 3]
        if len(seen) and len(later):
            assert float(((seen[:, None] - later).abs().amax(2).amin(1) < 1e-9).double().mean()) > 0.7


@pytest.mark.slow
def test_they_can_be_driven_but_better_not_straight_on(after: list[Scene]) -> None:
    scenes = after[::4]
    plans = plan(scenes)
    scorer = Scorer(scenes, plans=plans)
    rows = torch.arange(len(scenes))
    poses = torch.stack([in_ego(s.ego.poses[-1], p.trajectory[1:]) for s, p in zip(scenes, plans, strict=True)])
    expert = scorer(poses, rows, 0.1).epdms
    straight = scorer(constant_velocity(scenes)[1], rows).epdms
    assert float((expert > 0).double().mean()) > 0.85
    assert float(straight.mean()) < float(expert.mean()) - 0.1


def test_generated_scenes_are_those_of_before() -> None:
    """Follow-ups draw from numbers of their own: what was generated before there were any is still the same."""
    scene = GeneratedScenes(seed=0).scenes("train")[0]
    pose = [-856.8023001096419, 60.472140225390525, 1.3638733227832738]
    assert scene.ego.poses[-1].tolist() == pytest.approx(pose, rel=0, abs=1e-9)
    assert float(scene.agents.states.abs().sum()) == pytest.approx(275701.2937920458, rel=1e-12, abs=0)
