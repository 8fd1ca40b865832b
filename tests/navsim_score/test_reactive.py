"""Reactive traffic: against an oracle that goes one vehicle at a time, with shapely; and official scores."""

import math
from typing import Any

import numpy as np
import pytest
import shapely
import torch
from torch import Tensor

from driving_scenes.scene import Scene
from navsim_score.batch.scene_batch import SceneBatch
from navsim_score.expert.pdm_closed import plan
from navsim_score.geometry import rectangles
from navsim_score.simulation.simulate import simulate
from navsim_score.traffic.idm.rails import find_rails
from navsim_score.traffic.log_replay import LogReplay
from navsim_score.traffic.reactive import Reactive
from navsim_score.traffic.traffic import TrafficRollouts
from tests.driving_scenes.scenes import agent, lane, rectangle, road_map, straight, straight_road
from tests.navsim_score.reactive_oracle import box, worst

RIGHT, LEFT = -1.75, 1.75
"""Of the lanes of `straight_road`."""


def drive(scenes: list[Scene], poses: Tensor, scene: Tensor | None = None) -> tuple[TrafficRollouts, Tensor]:
    """Traffic in which candidates drive, and what they do."""
    batch = SceneBatch.of(scenes, plan(scenes))
    scene = torch.zeros(len(poses), dtype=torch.int64) if scene is None else scene
    states = simulate(batch.start[scene], poses)
    return Reactive()(batch, states, scene), states


def merge(agents: list[dict[str, Any]], speed: float = 6.0, junction: bool = True) -> Scene:
    """A lane eastward along y = 0 turns left at x = 0, to the north along x = 15, joined by one from below."""
    angles = np.linspace(0, np.pi / 2, 17)
    lines = {
        "east": ([[x, 0.0] for x in range(-60, 1, 2)], False, [], ["turn"]),
        "turn": ([[15 * math.sin(a), 15 - 15 * math.cos(a)] for a in angles], True, ["east"], ["north"]),
        "below": ([[15.0, y] for y in range(-60, -9, 2)], False, [], ["through"]),
        "through": ([[15.0, y] for y in range(-10, 16)], True, ["below"], ["north"]),
        "north": ([[15.0, y] for y in range(15, 91, 3)], False, ["turn", "through"], []),
    }
    lanes = []
    for name, (line, connector, before, after) in lines.items():
        outline = np.array(shapely.LineString(line).buffer(1.75, cap_style="flat").exterior.coords)[:-1].tolist()
        lanes.append(lane(name, name, outline, line, connector, 9.0 if name == "north" else None, before, after))
    areas = [{"id": "junction", "polygon": rectangle(0.0, -10.0, 17.0, 15.0)}] if junction else []
    ego = [{"t": 0.0, "pose": [-14.0, 0.0, 0.0], "velocity": [speed, 0.0], "acceleration": [0.0, 0.0]}]
    map_and_way = {"map": road_map(lanes, intersections=areas), "route": ["east", "turn", "north"]}
    return straight_road(agents, speed=speed, ego=ego, **map_and_way)


def busy(seed: int) -> Scene:
    """Vehicles all over the merging lanes, of different sizes, speeds and directions."""
    generator = np.random.default_rng(seed)
    lines = [([-60, 0], [1, 0], 45), ([-10, 0], [1, 0], 12), ([15, -60], [0, 1], 50), ([15, -9], [0, 1], 20)]
    lines += [([15, 16], [0, 1], 70), ([5, 1], [0.8, 0.6], 12)]
    agents = []
    for number in range(14):
        start, along, length = lines[number % len(lines)]
        x, y = np.array(start) + np.array(along) * generator.uniform(0, length) + generator.normal(0, 0.3, 2)
        yaw = math.atan2(along[1], along[0]) + generator.normal(0, 0.1)
        size = (generator.uniform(3.5, 9.0), generator.uniform(1.6, 2.5))
        speed = float(generator.uniform(0, 11)) * (number % 3 > 0)
        agents.append(agent(f"car{number:02}", float(x), float(y), yaw, speed, size=size))
    return merge(agents)


CANDIDATES = torch.stack([straight(6.0, acceleration) for acceleration in (0.0, -3.0, 1.0)])


@pytest.mark.parametrize("seed", range(6))
def test_vehicles_drive_as_one_by_one(seed: int):
    scene = busy(seed)
    assert len(find_rails(scene).rails) > 4
    traffic, states = drive([scene], CANDIDATES)
    for row in range(len(states)):
        assert worst(scene, states[row], traffic.poses[row], traffic.present[row]) < 5e-3


@pytest.mark.slow
def test_rows_and_scenes_do_not_mind_each_other():
    scenes = [busy(1), straight_road([agent("car", 20.0, RIGHT, speed=3.0)]), straight_road(), busy(2)]
    scene = torch.tensor([3, 0, 1, 0, 2, 3])
    poses = torch.cat([CANDIDATES, CANDIDATES])
    together, _ = drive(scenes, poses, scene)
    for row, which in enumerate(scene.tolist()):
        alone, _ = drive([scenes[which]], poses[row : row + 1])
        agents = alone.present.shape[1]
        torch.testing.assert_close(together.poses[row, :agents], alone.poses[0], rtol=0, atol=1e-9)
        assert (together.present[row, :agents] == alone.present[0]).all()
        assert not together.present[row, agents:].any()


def test_speeds_of_traffic():
    others = [agent("car", 20.0, LEFT, speed=5.0), agent("parked", 30.0, -6.0), agent("cone", 9.0, 9.0, kind="barrier")]
    scene = straight_road([*others, agent("walker", 20.0, -8.0, kind="pedestrian", speed=1.0)])
    traffic, states = drive([scene], straight()[None])
    for each in (traffic, LogReplay()(SceneBatch.of([scene], plan([scene])), states, traffic.of_row)):
        moved = each.poses[0, :, 1:, :2].diff(dim=1).norm(dim=-1)
        assert torch.allclose(moved, 0.1 * each.speeds[0, :, 1:-1])
        assert torch.equal(each.speeds[..., 0], each.first_speed)


def test_the_lane_ends():
    ego = [{"t": 0.0, "pose": [60.0, RIGHT, 0.0], "velocity": [8.0, 0.0], "acceleration": [0, 0]}]
    traffic, _ = drive([straight_road([agent("car", 140.0, LEFT, speed=10.0)], ego=ego)], straight()[None])
    assert float(traffic.poses[0, 0, -1, 0]) == pytest.approx(145.0)
    assert traffic.present[0, 0].all()


def test_first_step_is_the_log_and_then_vehicles_are_on_their_lanes():
    scene = straight_road([agent("car", 30.0, LEFT + 0.8, yaw=0.1, speed=5.0)])
    traffic, _ = drive([scene], straight()[None])
    torch.testing.assert_close(traffic.poses[0, 0, 0], torch.tensor([30.0, LEFT + 0.8, 0.1], dtype=torch.float64))
    np.testing.assert_allclose(traffic.poses[0, 0, 1:, 1:], [[LEFT, 0.0]] * 40, atol=1e-9)
    assert float(traffic.first_speed[0, 0]) == pytest.approx(5.0)


def test_who_is_there():
    others = [
        agent("parked", 30.0, -6.0),
        agent("wrong way", 40.0, 12.0, speed=4.0),  # on no lane, moving: vanishes
        agent("later", 60.0, LEFT, times=[1.0, 1.5, 2.0]),
        agent("under", 1.0, RIGHT),  # overlaps the ego: never put on its lane
        agent("walker", 20.0, -8.0, kind="pedestrian", size=(0.6, 0.6), speed=1.0),
        agent("seen once", 70.0, -8.0, kind="pedestrian", size=(0.6, 0.6), times=[2.0]),
        agent("far", 130.0, LEFT, speed=5.0),
    ]
    traffic, _ = drive([straight_road(others)], straight()[None])
    present = traffic.present[0]
    assert present[0].all() and present[4].all()
    assert present[:, 0].tolist() == [True, True, False, True, True, False, True]
    assert not present[1, 1:].any() and not present[2].any() and not present[3, 1:].any() and not present[6, 1:].any()
    assert present[5, 1:].all()
    assert (traffic.poses[0, 0, :, :2] == torch.tensor([30.0, -6.0], dtype=torch.float64)).all()


def test_parked_vehicles_give_way():
    # Off the lane, but in the way of the one that drives by; the second one overlaps the first.
    driver = agent("driver", 35.0, RIGHT, speed=10.0, size=(4.6, 3.2))
    scene = straight_road([agent("parked", 50.0, -4.2), agent("also", 52.0, -4.4), driver])
    traffic, _ = drive([scene], straight(2.0)[None])
    for step in range(1, 41):
        placed = zip(traffic.poses[0, :, step], traffic.sizes[0], strict=True)
        boxes = [rectangles.from_boxes(pose, size) for pose, size in placed]
        hit = [bool(rectangles.touch(boxes[row], boxes[2])) for row in (0, 1)]
        assert bool(traffic.present[0, 0, step]) == (not hit[0])
        assert bool(traffic.present[0, 1, step]) == (hit[0] and not hit[1])
    assert 0 < int(traffic.present[0, 0].sum()) < 41


def test_limit_of_the_lane_before_stays():
    agents = [agent("nowhere", 20.0, 0.0), agent("a", 15.0, 30.0, math.pi / 2, 5.0), agent("b", -40.0, 0.0)]
    rails = find_rails(merge(agents)).rails
    assert [rail.target_speed for rail in rails] == [9.0, 9.0]
    rails = find_rails(merge(agents[::-1])).rails
    assert [rail.target_speed for rail in rails] == [10.0, 9.0]


def test_connectors_carry_vehicles_inside_of_intersections_alone():
    there = [agent("a", 15.0, 5.0, math.pi / 2, 5.0)]
    assert len(find_rails(merge(there)).rails) == 1
    assert find_rails(merge(there, junction=False)).rails == ()


def test_tokens_in_tokens_are_overlooked():
    def gap(front: str) -> float:
        others = [agent("lead 1", 20.0, LEFT, speed=8.0), agent(front, 50.0, LEFT)]
        traffic, _ = drive([straight_road(others)], straight()[None])
        return float(traffic.poses[0, 1, -1, 0] - traffic.poses[0, 0, -1, 0])

    assert gap("other") > gap("lead") + 5


def test_no_agents():
    traffic, _ = drive([straight_road()], CANDIDATES)
    assert traffic.poses.shape == (3, 0, 41, 3)


def test_rectangles_against_shapely():
    generator = torch.Generator().manual_seed(0)

    def boxes(count: int) -> tuple[Tensor, list[shapely.Polygon]]:
        pose = torch.rand(count, 3, generator=generator, dtype=torch.float64) * 8
        size = torch.rand(count, 2, generator=generator, dtype=torch.float64) * 4
        polygons = [box(*one) for one in zip(pose.numpy(), *size.T.tolist(), strict=True)]
        return rectangles.from_boxes(pose, size), polygons

    (a, first), (b, second) = boxes(500), boxes(500)
    distances = [one.distance(other) for one, other in zip(first, second, strict=True)]
    expected = torch.tensor(distances, dtype=torch.float64)
    torch.testing.assert_close(rectangles.distance(a, b), expected, rtol=0, atol=1e-9)
    assert (rectangles.touch(a, b) == (expected == 0)).all()
    heights = torch.tensor([(one.bounds[3] - one.bounds[1]) / 2 for one in first], dtype=torch.float64)
    torch.testing.assert_close(rectangles.vertical_extent(a), heights)


@pytest.mark.slow
def test_real_scenes_drive_as_one_by_one(official_cases):
    for case in official_cases.values():
        traffic, states = drive([case.scene], case.poses[::9])
        for row in range(len(states)):
            assert worst(case.scene, states[row], traffic.poses[row], traffic.present[row]) < 1e-2


def test_a_slow_vehicle_in_an_intersection_is_not_parked():
    """Beside the lanes, it is parked only off intersections, too; elsewhere it vanishes."""
    in_junction, off_road = agent("junction", 8.0, -6.0), agent("lot", -30.0, -8.0)
    assert find_rails(merge([in_junction, off_road])).parked == (1,)
