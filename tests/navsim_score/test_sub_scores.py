"""Sub-scores, with a slow scorer as oracle: the rules one by one, in loops, with shapely."""

import math
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from shapely import LineString, Point, Polygon

from driving_scenes.generator.rigid_motion import moved
from driving_scenes.vehicle import centers, corners
from navsim_score.batch.scene_batch import SceneBatch
from navsim_score.expert.pdm_closed import plan
from navsim_score.geometry.boxes import box_corners
from navsim_score.official_constants import OFF_CENTER_STEPS
from navsim_score.scoring.lanes import driving_direction_compliance, lane_keeping
from navsim_score.scoring.sub_scores import SubScores
from navsim_score.simulation.simulate import simulate
from navsim_score.traffic.log_replay import LogReplay
from tests.driving_scenes.scenes import agent, crossing, straight_road

ROWS = 24


class SlowScorer:
    """One simulated drive in one scene."""

    def __init__(self, scene, route_lanes, centerline, traffic, states):
        self.map, self.centerline = scene.map, LineString(centerline.tolist())
        self.red, self.states = scene.lights, states.tolist()
        self.corners, self.centers = corners(states).tolist(), centers(states).tolist()
        self.agents = []
        boxes = box_corners(traffic.poses, traffic.sizes[:, None])
        for i in range(len(traffic.types)):
            shapes = [Polygon(boxes[i, t].tolist()) if traffic.present[i, t] else None for t in range(41)]
            self.agents.append((shapes, int(traffic.types[i]), float(traffic.first_speed[i])))
        blocks = self.map.roadblocks
        streets = [self.shape(blocks.polygons, i) for i in range(len(blocks.ids)) if not blocks.connector[i]]
        self.lanes = [self.shape(self.map.lanes.polygons, i) for i in range(len(self.map.lanes.ids))]
        self.on_route = [self.lanes[i] for i in route_lanes]
        areas = self.map.intersections
        self.crossings = [self.shape(areas.polygons, i) for i in range(len(areas.ids))]
        self.drivable = streets + self.crossings
        self.connectors = [i for i in range(len(self.lanes)) if int(self.map.lanes.roadblock[i]) in scene.route]

    @staticmethod
    def shape(points, i):
        return Polygon(points[i].tolist())

    def within(self, shapes, point):
        return any(shape.contains(Point(point)) for shape in shapes)

    def off_road(self, t):
        return not all(self.within(self.drivable, corner) for corner in self.corners[t])

    def unsafe(self, t):
        touched = [sum(lane.contains(Point(corner)) for corner in self.corners[t]) for lane in self.lanes]
        several = sum(count > 0 for count in touched) > 1 and 4 not in touched
        return several or self.off_road(t)

    def angle(self, t, shape):
        x, y, yaw = self.states[t][:3]
        to = math.atan2(shape.centroid.y - y, shape.centroid.x - x)
        return abs(math.degrees(math.remainder(to - yaw, 2 * math.pi)))

    def collisions(self):
        score, ignored = 1.0, set()
        for t in range(41):
            for i, (shapes, kind, first_speed) in enumerate(self.agents):
                ego = self.corners[t]
                if i in ignored or shapes[t] is None or not Polygon(ego).intersects(shapes[t]):
                    continue
                if self.states[t][3] ** 2 <= 0.05**2:
                    fault = False
                elif kind > 2 or first_speed <= 0.05:
                    fault = True
                elif self.angle(t, shapes[t]) > 150:
                    fault = False
                elif LineString([ego[0], ego[3]]).intersects(shapes[t]):
                    fault = True
                else:
                    fault = self.unsafe(t)
                if fault:
                    score = min(score, 0.0 if kind <= 2 else 0.5)
                else:
                    ignored.add(i)
        return score

    def time_to_collision(self):
        ignored = set()
        score = 1.0
        for t in range(32):
            x, y, yaw, speed = self.states[t][:4]
            for ahead in (0, 3, 6, 9):
                move = np.array([math.cos(yaw), math.sin(yaw)]) * abs(speed) * ahead * 0.1
                ego = Polygon(np.array(self.corners[t]) + move)
                for i, (shapes, _, _) in enumerate(self.agents):
                    shape = shapes[t + ahead]
                    if i in ignored or shape is None or abs(speed) < 0.005 or not ego.intersects(shape):
                        continue
                    angle = self.angle(t, shape)
                    unsafe = self.unsafe(t) or self.within(self.crossings, (x, y))
                    if angle < 30 or (unsafe and not angle > 150):
                        score = 0.0
                    else:
                        ignored.add(i)
        return score

    def driving_direction(self):
        moved = [0.0]
        for t in range(1, 41):
            wrong = not self.within(self.on_route, self.centers[t]) and not self.within(self.crossings, self.centers[t])
            moved.append(math.dist(self.centers[t], self.centers[t - 1]) * wrong)
        most = max(sum(moved[max(t - 10, 0) : t + 1]) for t in range(41))
        return 1.0 if most < 2 else 0.5 if most < 6 else 0.0

    def lights(self):
        for t in range(41):
            frame = t // 5
            for lane in self.connectors if frame < len(self.red.times) else ():
                if self.red.red[frame, lane] and Polygon(self.corners[t]).intersects(self.lanes[lane]):
                    return 0.0
        return 1.0

    def lane_keeping(self):
        count = 0
        for center in self.centers:
            if self.within(self.crossings, center):
                continue
            count = count + 1 if Point(center).distance(self.centerline) > 0.5 else 0
            if count >= 20:
                return 0.0
        return 1.0

    def progress(self):
        start, end = (self.centerline.project(Point(self.centers[t])) for t in (0, 40))
        return max(end - start, 0)

    def columns(self):
        return {
            "no_at_fault_collisions": self.collisions(),
            "drivable_area_compliance": float(not any(self.off_road(t) for t in range(41))),
            "driving_direction_compliance": self.driving_direction(),
            "traffic_light_compliance": self.lights(),
            "time_to_collision_within_bound": self.time_to_collision(),
            "lane_keeping": self.lane_keeping(),
        }


def random_candidates(seed):
    """Of all speeds, some standing, backing up or leaving the road."""
    rng = np.random.default_rng(seed)
    t = np.arange(1, 9) / 2
    speed, acceleration = rng.uniform(-3, 16, (ROWS, 1)), rng.uniform(-2, 2, (ROWS, 1))
    speed[:3], acceleration[:3] = 0, 0
    x = speed * t + acceleration * t**2 / 4
    y = rng.uniform(-6, 8, (ROWS, 1)) * np.clip(t / rng.uniform(1, 4, (ROWS, 1)), 0, 1) * rng.integers(0, 2, (ROWS, 1))
    yaw = np.arctan2(np.diff(y, prepend=0), np.maximum(np.diff(x, prepend=0), 0.3)) * 0.7
    return torch.from_numpy(np.stack([x, y, yaw], -1))


def random_agents(seed, count=9):
    rng = np.random.default_rng(seed)
    kinds = ["vehicle", "vehicle", "pedestrian", "bicycle", "traffic_cone", "barrier"]
    found = []
    for i in range(count):
        x, y = rng.uniform(-12, 40), rng.uniform(-6, 6)
        yaw, speed = rng.choice([0.0, math.pi, rng.uniform(-3, 3)]), rng.choice([0.0, rng.uniform(0, 9)])
        kind, size = kinds[rng.integers(len(kinds))], tuple(rng.uniform(0.5, 5, 2))
        times = [0.5 * k for k in range(rng.integers(0, 4), rng.integers(5, 9))]
        found.append(agent(str(i), x, y, yaw, speed, kind, size, times))
    return found


@cache
def sub_scores(seed):
    """Of random candidates in a random scene, with all that the slow scorer needs."""
    scene = (straight_road, crossing)[seed % 2](random_agents(seed), speed=float(seed % 3 * 4))
    scene = moved(scene, 0.7 * (seed > 1), (1000.0 * (seed > 1), -500.0))
    [expert] = plan([scene])
    batch = SceneBatch.of([scene], [expert])
    rows = torch.zeros(ROWS, dtype=torch.int64)
    states = simulate(batch.start[rows], random_candidates(seed))
    traffic = LogReplay()(batch, states, rows)
    return scene, expert, states, traffic, SubScores.of(batch, states, rows, traffic)


@pytest.mark.parametrize("seed", range(6))
def test_sub_scores_are_those_of_the_slow_scorer(seed):
    scene, expert, states, traffic, fast = sub_scores(seed)
    first = type(traffic)(**{name: value[0] for name, value in vars(traffic).items()})
    slow = [SlowScorer(scene, expert.route_lanes, expert.centerline, first, row) for row in states]
    columns = [each.columns() for each in slow]
    for name, outcome in fast.outcomes.items():
        assert outcome.value.tolist() == [column[name] for column in columns], name
        assert torch.equal(outcome.step >= 0, outcome.value < 1), name
    assert fast.progress.tolist() == pytest.approx([each.progress() for each in slow], abs=1e-9)


def test_the_random_scenes_are_diverse():
    """So that the test above means something: every value that a sub-score can have comes up."""
    values = {}
    for seed in range(6):
        for name, outcome in sub_scores(seed)[-1].outcomes.items():
            values.setdefault(name, set()).update(outcome.value.tolist())
    halves = {"no_at_fault_collisions", "driving_direction_compliance"}
    assert values == {name: {0.0, 0.5, 1.0} if name in halves else {0.0, 1.0} for name in values}


def steps(*runs):
    """``[1, 41]`` bool: runs of (value, steps); the rest is False."""
    values = [value for value, count in runs for _ in range(count)]
    return torch.tensor([values + [False] * (41 - len(values))])


@pytest.mark.parametrize(
    ("off_center", "in_intersection", "value"),
    [
        (steps((True, OFF_CENTER_STEPS)), steps(), 0),
        (steps((True, OFF_CENTER_STEPS - 1)), steps(), 1),
        (steps((True, 10), (False, 1), (True, OFF_CENTER_STEPS - 1)), steps(), 1),
        # Centered steps within an intersection do not reset what was counted before it.
        (steps((True, 10), (False, 5), (True, OFF_CENTER_STEPS - 10)), steps((False, 10), (True, 5)), 0),
        (steps((True, 10), (False, 5), (True, OFF_CENTER_STEPS - 11)), steps((False, 10), (True, 5)), 1),
        # Steps off the centerline do not count there.
        (steps((True, OFF_CENTER_STEPS + 4)), steps((False, 10), (True, 5)), 1),
    ],
)
def test_intersections_neither_count_nor_reset_lane_keeping(off_center, in_intersection, value):
    motion = SimpleNamespace(centers=None, scene=None, states=torch.zeros(1, 41, 11))
    centerlines = SimpleNamespace(within=lambda *_: ~off_center)
    found = lane_keeping(centerlines, motion, SimpleNamespace(center_in_intersection=in_intersection))
    assert found.value.tolist() == [value]


@pytest.mark.parametrize(("meters", "value"), [(2.0 / 11, 0.5), (1.99 / 11, 1.0), (6.0 / 11, 0.0)])
def test_oncoming_meters_of_eleven_steps_add_up(meters, value):
    """The devkit sums a window of 1.1 s."""
    x = torch.arange(41, dtype=torch.float64) * (meters + 1e-9)
    centers = torch.stack([x, torch.zeros(41, dtype=torch.float64)], -1)[None]
    oncoming = steps((False, 1), (True, 11))
    areas = SimpleNamespace(oncoming=oncoming, center_in_intersection=steps())
    found = driving_direction_compliance(SimpleNamespace(centers=centers), areas)
    assert found.value.tolist() == [value]
