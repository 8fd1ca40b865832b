"""Generated scenes: the same for the same numbers, consistent, and such that one can drive in them."""

from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import shapely
import torch

from driving_scenes.generator import GeneratedScenes
from driving_scenes.generator.agent import TIMES, overlapping
from driving_scenes.generator.curve import Curve
from driving_scenes.generator.traffic import queue
from driving_scenes.scene import AGENT_TYPES, Scene
from driving_scenes.source import Split
from navsim_score.expert.pdm_closed import plan
from navsim_score.scorer import Scorer
from tests.navsim_score.reactive_oracle import box

COUNT = 60


@pytest.fixture(scope="module")
def scenes() -> list[Scene]:
    return list(GeneratedScenes(seed=5, count=COUNT).scenes("train"))


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if is_dataclass(one):
        return all(same(getattr(one, part.name), getattr(other, part.name)) for part in fields(one))
    return bool(one == other)


def sums(scenes: list[Scene], names: Iterable[str]) -> dict[str, float]:
    """Of absolute values, by attribute of a scene."""

    def size(value: Any) -> float:
        return float(value.double().nan_to_num().abs().sum())

    return {name: sum(size(attrgetter(name)(scene)) for scene in scenes) for name in names}


# Of the scenes of `scenes`. Results that name a seed hold for these scenes alone.
SUMS = {
    "agents.sizes": 5303.355295,
    "agents.states": 8881168.313,
    "agents.seen": 8751,
    "ego.poses": 248417.183,
    "ego.velocities": 1978.203733,
    "human": 7646.367763,
    "map.lanes.polygons.xy": 43588615.19,
    "map.lanes.speed_limit": 10399.347,
    "map.roadblocks.polygons.xy": 31294289.58,
    "map.intersections.polygons.xy": 2806452.896,
    "map.carparks.polygons.xy": 2572101.477,
    "lights.red": 826,
    "lights.green": 902,
}


def test_the_scenes_of_a_seed_are_those_of_the_committed_results(scenes: list[Scene]) -> None:
    """A change that is meant to change scenes writes new sums, and the results again."""
    assert sums(scenes, SUMS) == pytest.approx(SUMS, rel=1e-5)


def test_a_scene_depends_on_its_numbers_alone(scenes: list[Scene]) -> None:
    source = GeneratedScenes(seed=5, count=1000)
    for index in (31, 2, 17):
        assert same(source.scenes("train")[index], scenes[index])
    assert not same(GeneratedScenes(seed=6).scenes("train")[2].ego, scenes[2].ego)


def test_splits_share_nothing() -> None:
    source = GeneratedScenes(seed=0, count=8)
    splits: tuple[Split, ...] = ("train", "val", "test")
    found = [scene for split in splits for scene in source.scenes(split)]
    assert len({scene.name for scene in found}) == len({scene.log for scene in found}) == 24
    assert len({tuple(scene.ego.poses.flatten().tolist()) for scene in found}) == 24


def test_maps_hang_together(scenes: list[Scene]) -> None:
    for scene in scenes[:25]:
        lanes, blocks = scene.map.lanes, scene.map.roadblocks
        for row in range(len(lanes.ids)):
            assert row in blocks.lanes[int(lanes.roadblock[row])]
            assert shapely.Polygon(lanes.polygons[row]).is_valid
            for after in lanes.outgoing[row]:
                assert row in lanes.incoming[after]
                assert int(lanes.roadblock[after]) in blocks.outgoing[int(lanes.roadblock[row])]
                torch.testing.assert_close(lanes.centerlines[row][-1], lanes.centerlines[after][0])
        for row in range(len(blocks.ids)):
            polygon = shapely.Polygon(blocks.polygons[row])
            assert polygon.is_valid
            assert all(polygon.buffer(0.1).covers(shapely.Polygon(lanes.polygons[lane])) for lane in blocks.lanes[row])
            assert all(row in blocks.incoming[after] for after in blocks.outgoing[row])
        for areas in (scene.map.intersections, scene.map.carparks):
            assert all(shapely.Polygon(areas.polygons[row]).is_valid for row in range(len(areas.ids)))


def test_routes_start_under_the_ego_and_lead_on(scenes: list[Scene]) -> None:
    for scene in scenes:
        blocks = scene.map.roadblocks
        start = shapely.Point(scene.ego.poses[-1, :2])
        assert shapely.Polygon(blocks.polygons[scene.route[0]]).contains(start)
        for before, after in zip(scene.route[:-1], scene.route[1:], strict=True):
            assert after in blocks.outgoing[before]


def test_the_planner_takes_the_route_and_has_room_ahead(scenes: list[Scene]) -> None:
    for scene, found in zip(scenes[:15], plan(scenes[:15]), strict=True):
        blocks = scene.map.roadblocks
        assert set(found.route_lanes) == {lane for row in scene.route for lane in blocks.lanes[row]}
        line = shapely.LineString(found.centerline)
        at = line.project(shapely.Point(scene.ego.poses[-1, :2]))
        speed = float(scene.ego.velocities[-1, 0])
        assert line.length - at > 4 * speed + 20


def test_history_is_what_led_to_now(scenes: list[Scene]) -> None:
    for scene in scenes:
        ego = scene.ego
        assert ego.times.tolist() == [-1.5, -1, -0.5, 0]
        speed = ego.velocities[:, 0]
        assert (speed >= 0).all()
        driven = ego.poses[:, :2].diff(dim=0).norm(dim=1)
        torch.testing.assert_close(driven, (speed[1:] + speed[:-1]) / 4, rtol=0.02, atol=0.02)
        torch.testing.assert_close(speed.diff(), ego.accelerations[1:, 0] / 2, rtol=1e-9, atol=1e-9)
        # The yaw rate is that of the lateral acceleration; a bend may begin between two states.
        turned = ego.poses[:, 2].diff() * (speed[1:] + speed[:-1]) / 2
        lateral = (ego.accelerations[1:, 1] + ego.accelerations[:-1, 1]) / 4
        torch.testing.assert_close(turned, lateral, rtol=0.1, atol=0.25)
        assert scene.human is not None
        first = float(scene.human[0, :2].norm())
        assert abs(first - float(speed[-1]) / 2) < 0.5


def test_agents_move_as_their_velocities_say(scenes: list[Scene]) -> None:
    for scene in scenes:
        agents = scene.agents
        assert agents.times.tolist() == [step / 2 for step in range(-3, 9)]
        for states, seen in zip(agents.states, agents.seen, strict=True):
            known = states[seen]
            assert len(known) > 1
            assert seen.int().diff().abs().sum() <= 2  # without gaps
            moved_by = known[:, :2].diff(dim=0)
            expected = (known[1:, 3:] + known[:-1, 3:]) / 4
            assert float((moved_by - expected).norm(dim=1).max()) < 0.45
        assert (agents.states[~agents.seen] == 0).all()


def test_nobody_touches_anybody(scenes: list[Scene]) -> None:
    for scene in scenes:
        agents = scene.agents
        for step in range(12):
            rows = agents.seen[:, step].nonzero()[:, 0]
            poses = agents.states[rows, step, :3].numpy()
            sizes = agents.sizes[rows, :2].numpy()
            hit = overlapping(poses[:, None], sizes[:, None], poses[None], sizes[None])
            assert hit.sum() == len(rows)


def test_kinds_of_scenes_and_agents(scenes: list[Scene]) -> None:
    assert {scene.intent for scene in scenes} == {"left", "straight", "right"}
    assert {int(kind) for scene in scenes for kind in scene.agents.types.unique()} >= set(range(4))
    assert len(AGENT_TYPES) == 7
    lit = [scene for scene in scenes if len(scene.lights.times)]
    assert 0.1 < len(lit) / COUNT < 0.6
    for scene in lit:
        assert torch.equal(scene.lights.red, ~scene.lights.green & scene.map.lanes.connector)
    assert any(not scene.map.intersections.ids for scene in scenes)
    assert any(scene.map.carparks.ids for scene in scenes)


# Smallest and largest length and width in meters.
SIZES = {
    "vehicle": ((4.0, 12.5), (1.75, 2.55)),
    "pedestrian": ((0.4, 0.9), (0.5, 0.9)),
    "bicycle": ((1.6, 1.9), (0.5, 0.8)),
    "traffic_cone": ((0.3, 0.5), (0.3, 0.5)),
    "barrier": ((1.5, 2.5), (0.3, 0.6)),
    "czone_sign": ((0.5, 0.8), (0.5, 1.0)),
    "generic_object": ((0.4, 1.2), (0.4, 0.9)),
}


def test_agents_have_the_sizes_of_their_types(scenes: list[Scene]) -> None:
    assert SIZES.keys() == set(AGENT_TYPES)
    for number, name in enumerate(AGENT_TYPES):
        found = torch.cat([scene.agents.sizes[scene.agents.types == number, :2] for scene in scenes])
        for (low, high), column in zip(SIZES[name], found.T, strict=True):
            assert ((low - 1e-6 <= column) & (column <= high + 1e-6)).all(), name


def humans_score(scenes: list[Scene]) -> float:
    """The mean EPDMS of the humans."""
    humans = [scene.human for scene in scenes if scene.human is not None]
    scores = Scorer(scenes, human_filter=False)(torch.stack(humans), torch.arange(len(scenes)))
    assert scores.valid.all()
    return float(scores.epdms.mean())


def test_the_human_drives_well(scenes: list[Scene]) -> None:
    assert humans_score(scenes[:20]) > 0.85


def test_overlaps_are_those_of_polygons() -> None:
    rng = np.random.default_rng(0)
    poses = rng.uniform(-4, 4, (2, 500, 3))
    sizes = rng.uniform(0.5, 5, (2, 500, 2))

    first, second = ([box(poses[i, row], *sizes[i, row]) for row in range(500)] for i in (0, 1))
    expected = [one.intersects(other) for one, other in zip(first, second, strict=True)]
    assert overlapping(poses[0], sizes[0], poses[1], sizes[1]).tolist() == expected
    assert 100 < sum(expected) < 450


def test_paths() -> None:
    circle = Curve.curved(np.full(100, 0.02), (1.0, 2.0, 0.5))
    np.testing.assert_allclose(np.diff(circle.yaw), 0.02)
    middle = np.array([1.0, 2.0]) + 50 * np.array([-np.sin(0.5), np.cos(0.5)])
    np.testing.assert_allclose(np.hypot(*(circle.xy - middle).T), 50)
    np.testing.assert_allclose(np.hypot(*(circle.offset(10.0).xy - middle).T), 40)
    places = circle.project(circle.at(np.array([3.0, 40.0]), np.array([1.0, -2.0]))[:, :2])
    np.testing.assert_allclose(places, [[3.0, 1.0], [40.0, -2.0]], atol=0.01)
    turn = Curve.between((0.0, 0.0, 0.0), (10.0, 10.0, np.pi / 2))
    np.testing.assert_allclose([turn.start, turn.end], [[0, 0, 0], [10, 10, np.pi / 2]], atol=1e-12)
    assert (np.diff(turn.yaw) > 0).all()
    np.testing.assert_allclose(turn.reversed().end, (0.0, 0.0, np.pi), atol=1e-12)


def test_a_queue_starts_one_after_another() -> None:
    """At a light that turns green at 1 s: 0.8 s later for each place, with 1.2 m/s²."""
    path = Curve.curved(np.zeros(400))
    green = SimpleNamespace(red_from=lambda trip: (-1e3, 1.0))
    site: Any = SimpleNamespace(lights=green, trip=SimpleNamespace(line=120.0, path=path), s=0.0)
    longest = max((queue(np.random.default_rng(seed), site) for seed in range(20)), key=len)
    assert len(longest) == 3
    for place, agent in enumerate(longest, 1):
        since = (TIMES - 1.0 - 0.8 * place).clip(0)
        assert agent.states[:, 0] - agent.states[0, 0] == pytest.approx(0.6 * since**2)
        assert agent.states[:, 3] == pytest.approx(1.2 * since)
