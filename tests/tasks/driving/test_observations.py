"""What is said of a scene is what is in it."""

import math
import re

import numpy as np
import pytest

from driving_scenes.generator import GeneratedScenes
from lightning_cgrpo.tasks.driving.moving_observations import MovingObservations
from lightning_cgrpo.tasks.driving.observations import Observations
from tests.driving_scenes.scenes import agent, straight_road

TEXT = re.compile(
    r"Lane: (\S+) (\S+), (\S+) (\S+), (\S+) (\S+)\. Ahead: (none|[0-9]+)\. Light: (?:none|(red) ([0-9]+))\."
)


@pytest.fixture(scope="module")
def scenes():
    return list(GeneratedScenes(5).scenes("train")[:60])


@pytest.fixture(scope="module")
def said(scenes):
    found = []
    for scene in scenes:
        match = TEXT.fullmatch(Observations()(scene))
        assert match is not None
        found.append(match.groups())
    return found


def test_the_lane_begins_near_the_ego_and_goes_on(scenes, said):
    for parts in said:
        points = np.array([0.0, 0.0, *map(float, parts[:6])]).reshape(4, 2)
        steps = np.hypot(*np.diff(points, axis=0).T)
        assert (steps < 12).all()


def test_the_human_drives_along_the_lane(scenes, said):
    """Where it gets 10 m away in 4 s, it has passed near the first of the lane's points."""
    near = []
    for scene, parts in zip(scenes, said, strict=True):
        path = np.concatenate([np.zeros((1, 2)), scene.human[:, :2].numpy()])
        fine = np.stack([np.interp(np.arange(0, 8, 0.05), np.arange(9), path[:, axis]) for axis in (0, 1)], 1)
        if np.hypot(*path[-1]) > 12:
            near.append(np.hypot(*(fine - np.array(parts[:2], float)).T).min())
    assert len(near) > 20
    assert np.mean(np.array(near) < 1.5) > 0.9


def test_a_red_light_is_told_where_one_is(scenes, said):
    assert any(parts[7] for parts in said) and not all(parts[7] for parts in said)
    for scene, parts in zip(scenes, said, strict=True):
        if parts[7]:
            assert bool(scene.lights.red[0].any())
            assert 0 < int(parts[8]) <= 40


def test_who_is_ahead_is_an_agent_at_that_distance(scenes, said):
    """Along the lane it is at least as far as straight on."""
    found = 0
    for scene, parts in zip(scenes, said, strict=True):
        if parts[6] == "none":
            continue
        found += 1
        now = int(np.abs(scene.agents.times.numpy()).argmin())
        seen = scene.agents.seen[:, now].numpy()
        places = scene.agents.states[seen, now, :2].numpy() - scene.ego.poses[-1, :2].numpy()
        assert np.hypot(*places.T).min() < int(parts[6]) + 3
    assert found > 5


def test_an_empty_road_has_nobody_ahead():
    assert "Ahead: none." in Observations()(straight_road([]))


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (agent("a", 20, -1.75, speed=3.0), "Ahead: 20 3. In: none."),
        (agent("a", 20, -1.75, yaw=math.pi, speed=3.0), "Ahead: 20 0. In: none."),  # comes towards the ego
        (agent("a", 15, -8, math.pi / 2, 1.5, "pedestrian", (0.6, 0.6)), "Ahead: none. In: 15 3.0."),  # after 2.9 s
        (agent("a", 15, -8, -math.pi / 2, 1.5, "pedestrian", (0.6, 0.6)), "Ahead: none. In: none."),  # walks away
        (agent("a", 10, 1.75, -0.2, 8.0), "Ahead: none. In: 14 0.5."),  # cuts in
        (agent("a", 10, 1.75, 0.0, 8.0), "Ahead: none. In: none."),  # stays in its lane
        (agent("a", 20, -4.2), "Ahead: 20 0. In: none."),  # stands at the edge, half a meter too near
        (agent("a", -10, -1.75, speed=12.0), "Ahead: none. In: none."),  # follows
    ],
)
def test_moving_observations_say_who_is_and_who_comes_into_the_lane(one, words):
    assert words in MovingObservations()(straight_road([one]))


def test_moving_observations_say_the_rest_as_observations_do(scenes):
    for scene in scenes[:10]:
        said = Observations()(scene), MovingObservations()(scene)
        assert len({re.sub(r"Ahead: .*?Light", "Light", text) for text in said}) == 1


def test_the_first_to_come_and_the_nearest_ahead_are_named():
    many = [agent("far", 40, -1.75, speed=5.0), agent("near", 25, -1.75, speed=2.0)]
    many += [agent("later", 10, -12, math.pi / 2, 2.5), agent("sooner", 30, -8, math.pi / 2, 2.5)]
    assert "Ahead: 25 2. In: 30 " in MovingObservations()(straight_road(many))
