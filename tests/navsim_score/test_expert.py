"""PDM-Closed and its parts."""

import random
from collections.abc import Collection
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from driving_scenes.generator import GeneratedScenes
from driving_scenes.generator.rigid_motion import moved
from driving_scenes.scene import Scene
from navsim_score.expert.forecast import Forecast, as_traffic
from navsim_score.expert.pdm_closed import plan
from navsim_score.expert.proposals import propose
from navsim_score.geometry.lane_path import LanePath
from navsim_score.route.lane_ahead import LaneAhead, lane_ahead, lane_sequence
from navsim_score.route.road import Road
from navsim_score.route.route import correct_route, shortest_way
from tests.driving_scenes.scenes import agent, crossing, lane, rectangle, road_map, straight_road

FRONT = 4.049


def test_does_not_mind_what_is_beside_or_behind_it_or_under_it():
    alone = plan([straight_road()])[0].trajectory
    for other in (agent("beside", 0.0, 5.25), agent("behind", -20.0, -1.75, speed=5.0), agent("under", 1.0, -1.75)):
        torch.testing.assert_close(plan([straight_road([other])])[0].trajectory, alone)


def test_light_that_will_be_red_is_not_known():
    lights = [{"t": 0.5, "red": ["through"], "green": []}]
    [found] = plan([crossing(traffic_lights=lights)])
    assert float(found.trajectory[-1, 0]) + FRONT > 25.0


def test_batch_is_the_same_as_one_by_one():
    """Bit for bit, of maps and numbers of agents of all sizes."""
    scenes = [straight_road([agent("car", 25.0, -1.75)]), crossing(), straight_road(), crossing(red=False)]
    scenes += GeneratedScenes(9).scenes("train")[:12]
    for alone, together in zip([plan([scene])[0] for scene in scenes], plan(scenes), strict=True):
        torch.testing.assert_close(together.trajectory, alone.trajectory, rtol=0, atol=0)
        torch.testing.assert_close(together.centerline, alone.centerline, rtol=0, atol=0)
        assert together.route_lanes == alone.route_lanes


@pytest.mark.parametrize("scene", [straight_road([agent("car", 22.0, -3.6)]), crossing()])
def test_rigid_motion_moves_the_plan(scene):
    motion = 0.7, (320.0, -140.0)
    [here], [there] = plan([scene]), plan([moved(scene, *motion)])
    expected = moved(replace(scene, pdm_trajectory=here.trajectory), *motion).pdm_trajectory
    torch.testing.assert_close(there.trajectory, expected, rtol=0, atol=1e-6)


# Route


def grid(blocks: int, links: Collection[tuple[int, int]], route: list[int], at: int = 0) -> Scene:
    """Roadblocks of one lane, squares side by side from x = 10 number to 10 number + 10; the ego in one of them."""
    lanes = []
    for number in range(blocks):
        x, name = 10.0 * number, f"b{number}"
        before, after = [f"b{a}" for a, b in links if b == number], [f"b{b}" for a, b in links if a == number]
        outline, line = rectangle(x, 0.0, x + 10, 4.0), [[x, 2.0], [x + 10, 2.0]]
        lanes.append(lane(name, name, outline, line, False, None, before, after))
    ego = [{"t": 0.0, "pose": [10.0 * at + 5, 2.0, 0.0], "velocity": [5.0, 0.0], "acceleration": [0, 0]}]
    return straight_road(map=road_map(lanes), route=[f"b{number}" for number in route], ego=ego)


CHAIN = {(number, number + 1) for number in range(7)}


@pytest.mark.parametrize(
    ("links", "route", "at", "corrected"),
    [
        (CHAIN, [0, 1, 2], 0, [0, 1, 2]),
        (CHAIN, [0, 1, 2, 1], 1, [0, 1, 2]),
        (CHAIN, [3, 4], 1, [1, 2, 3, 4]),  # led to from the ego
        # Of two ways, the last link counts: backward from the route it is (1, 3), forward from the ego (2, 3).
        ([(0, 1), (0, 2), (2, 3), (1, 3)], [3], 0, [0, 1, 3]),
        # No way leads to the route's first roadblock, but one to the third.
        ((CHAIN - {(0, 1), (1, 2)}) | {(0, 6), (6, 3)}, [1, 2, 3, 4], 0, [0, 6, 3, 4]),
        (CHAIN, [0, 3, 4, 7], 0, [0, 1, 2, 3, 4, 5, 6, 7]),  # gaps are filled
        (set(), [3, 5], 0, [3, 5]),  # out of reach
    ],
)
def test_routes_are_corrected(links, route, at, corrected):
    assert list(correct_route(Road(grid(8, links, route, at)))) == corrected


def test_route_ends_where_it_crosses_itself():
    scene = grid(8, CHAIN, list(range(8)))
    polygons = replace(scene.map.roadblocks.polygons, xy=scene.map.roadblocks.polygons.xy.clone())
    polygons.xy[5] = polygons.xy[2] + 2.0  # overlaps roadblock 2, both being connectors
    connector = torch.tensor([number in (2, 5) for number in range(8)])
    blocks = replace(scene.map.roadblocks, polygons=polygons, connector=connector)
    assert correct_route(Road(replace(scene, map=replace(scene.map, roadblocks=blocks)))) == (0, 1, 2, 3, 4)


def test_ego_off_the_road_starts_in_the_nearest_lane():
    scene = grid(8, CHAIN, [0, 1, 2], at=1)
    away = replace(scene.ego, poses=scene.ego.poses + torch.tensor([0.0, 12.0, 0.0], dtype=torch.float64))
    assert lane_ahead(replace(scene, ego=away)).lanes[0] == 1


def naive_search(neighbors: list[list[int]], start: int, targets: list[int], depth: int) -> list[int] | None:
    """Breadth-first as officially: roadblocks are visited as often as they are reached, the last parent stays."""
    queue: list[int | None] = [start, None]
    parents: dict[tuple[int, int], int] = {}
    level = 1
    while queue:
        block = queue.pop(0)
        if level > depth:
            return None
        if block is None:
            level += 1
            queue.append(None)
            if queue[0] is None:
                return None
            continue
        if block in targets:
            way = [block]
            while level > 1:
                way.append(parents[way[-1], level])
                level -= 1
            return way[::-1]
        for following in neighbors[block]:
            queue.append(following)
            parents[following, level + 1] = block
    return None


def test_search_finds_the_official_way():
    generator = random.Random(0)
    found = 0
    for _ in range(300):
        count = generator.randint(2, 9)
        neighbors = [generator.sample(range(count), generator.randint(0, min(3, count))) for _ in range(count)]
        start, targets = generator.randrange(count), generator.sample(range(count), generator.randint(1, 2))
        expected = naive_search(neighbors, start, targets, 6)
        assert shortest_way(neighbors, start, targets, 6) == expected
        found += expected is not None and len(expected) > 2
    assert found > 30


def test_lane_sequence_is_the_shortest_way_or_that_of_most_lanes():
    dead_end = Road(grid(8, [(0, 1), (1, 2), (0, 3)], list(range(8))))
    assert lane_sequence(dead_end, tuple(range(8)), 0) == [0, 1, 2]
    generator = random.Random(1)
    for _ in range(50):
        links = {(a, b) for a in range(8) for b in range(8) if a != b and generator.random() < 0.3}
        scene = grid(8, links, list(range(8)))
        lengths = [generator.uniform(1, 9) for _ in range(8)]
        lines = scene.map.lanes.centerlines
        lines.xy[:, 1, 0] = lines.xy[:, 0, 0] + torch.tensor(lengths, dtype=torch.float64)
        weights = np.zeros((8, 8))
        for a, b in links:
            weights[a, b] = lengths[b]
        distance = dijkstra(csr_array(weights), indices=0)[7]
        way = lane_sequence(Road(scene), tuple(range(8)), 0)
        assert way[0] == 0
        if np.isfinite(distance):
            assert way[-1] == 7
            assert sum(lengths[lane] for lane in way[1:]) == pytest.approx(distance)
        assert all(link in links for link in pairwise(way))


# LanePath


def test_path_between_its_points():
    path = LanePath.along([np.array([[0.0, 0.0], [3.0, 0.0]]), np.array([[3.0, 0.0], [3.0, 4.0]])])
    assert path.length == 7.0
    np.testing.assert_allclose(path.at(np.array([1.5, 5.0, 99.0])), [[1.5, 0, 0], [3, 2, np.pi / 2], [3, 4, np.pi / 2]])
    np.testing.assert_allclose(path.at(np.array(-3.0)), [1e-5, 0, 0])
    np.testing.assert_allclose(path.project(np.array([[1.0, -0.5], [9.0, 1.0]])), [1.0, 4.0])
    np.testing.assert_allclose(path.shifted(1.0).points, [[0, 1], [3, 1], [2, 0], [2, 4]], atol=1e-12)
    np.testing.assert_allclose(path.corridor(0.0, 3.0, 1.0).bounds, (-1.0, -1.0, 4.0, 1.0))
    # From the path's first point between both distances; without two such points, from the distances themselves.
    np.testing.assert_allclose(path.corridor(0.5, 7.0, 1.0).bounds, (2.0, -1.0, 4.0, 5.0))
    np.testing.assert_allclose(path.corridor(0.5, 2.5, 1.0).bounds, (-0.5, -1.0, 3.5, 1.0))


# Forecast


def test_forecast_minds_the_nearest_of_each_type():
    cars = [agent(f"car{i}", 10.0 + i, 20.0, speed=-2.0 if i else 2.0) for i in range(60)]
    people = [agent(f"ped{i}", -10.0 - i, -20.0, kind="pedestrian", size=(0.6, 0.6)) for i in range(30)]
    scene = straight_road([*people, *cars, agent("far", 150.0, 0.0), agent("cone", 5.0, 9.0, kind="traffic_cone")])
    road = Road(scene)
    forecast = Forecast.of(road, (0, 1))
    assert forecast.types.bincount().tolist() == [50, 25, 0, 1]
    assert forecast.types[0] == 3
    traffic = as_traffic([forecast], torch.zeros(3, dtype=torch.int64))
    assert traffic.poses.shape == (1, 76, 41, 3)
    first, second = traffic.poses[0, 1], traffic.poses[0, 2]
    torch.testing.assert_close(first[[0, 1, 2, 40], 0], torch.tensor([10.0, 10.0, 10.4, 18.0], dtype=torch.float64))
    assert float(second[40, 0] - second[0, 0]) == pytest.approx(-8.0)  # backward, against its heading
    assert (second[:, 2] == 0).all()


def test_proposals_look_at_a_leader_of_their_own():
    scene = straight_road([agent("car", 20.0, -4.3, size=(4.0, 1.6))])  # in the way of the path on the right only
    road = Road(scene)
    [found] = propose([LaneAhead(road, (0,), (0, 1), [0])], [Forecast.of(road, (0, 1))])
    assert found.shape == (15, 41, 3)
    end = found[:, -1, 0].reshape(3, 5)
    np.testing.assert_allclose(end[0], end[2])
    assert end[1, -1] < 20 - 2 - FRONT < end[0, -1]
    assert (np.diff(end[0]) > 0).all()  # faster with a higher limit


# Official plans


def test_official_plans(official_cases):
    for case, found in zip(official_cases.values(), plan([c.scene for c in official_cases.values()]), strict=True):
        reference = case.official["reference"]
        assert [case.scene.map.lanes.ids[lane] for lane in found.route_lanes] == reference["route_lane_ids"]
        rows = (reference[name] for name in ("pdm_trajectory", "centerline"))
        trajectory, line = (torch.tensor(values, dtype=torch.float64)[:, :3] for values in rows)
        torch.testing.assert_close(found.trajectory, trajectory, rtol=0, atol=1e-6)
        torch.testing.assert_close(found.centerline, line[:, :2], rtol=0, atol=1e-6)
