"""The devkit's `pdm_score` on fakes of its objects, built from a scene; beside the scorer on that scene."""

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import shapely
import torch

from driving_scenes.errors import InputError
from driving_scenes.scene import AGENT_TYPES, MOVING_TYPES
from driving_scenes.vehicle import corners
from navsim_score import drop_in
from navsim_score.batch.agent_tracks import interpolate_agents
from navsim_score.columns import COLUMNS
from navsim_score.drop_in import pdm_score, scorer_of
from navsim_score.scorer import Scorer
from navsim_score.traffic.reactive import Reactive
from tests.driving_scenes.fake_devkit import tracked
from tests.driving_scenes.scenes import straight, straight_road
from tests.navsim_score.devkit_scenes import candidates, scenes

SAMPLING = SimpleNamespace(num_poses=40, interval_length=0.1)
REPLAY = type("LogReplayTrafficAgents", (), {})()


def devkit_score(cache, poses, filtered=True, sampling=SAMPLING, traffic=REPLAY):
    """The devkit's call."""
    pytest.importorskip("pandas")
    plan = SimpleNamespace(poses=poses, trajectory_sampling=SimpleNamespace(interval_length=0.5))
    scorer = SimpleNamespace(_config=SimpleNamespace(human_penalty_filter=filtered))
    return pdm_score(cache, plan, sampling, None, scorer, traffic)


def pose(values):
    return SimpleNamespace(**dict(zip(("x", "y", "heading"), map(float, values), strict=True)))


def ego_state(ego, row):
    now = {"velocity": ego.velocities[row].tolist(), "acceleration": ego.accelerations[row].tolist()}
    vector = {f"rear_axle_{kind}_2d": SimpleNamespace(x=x, y=y) for kind, (x, y) in now.items()}
    time = round(float(ego.times[row]) * 1e6) + 7_000_000
    return SimpleNamespace(time_us=time, rear_axle=pose(ego.poses[row]), dynamic_car_state=SimpleNamespace(**vector))


def tracks(scene):
    poses, velocities, present, _ = interpolate_agents(scene.agents)
    for step in range(41):
        found = []
        for row, token in enumerate(scene.agents.tokens):
            if present[row, step]:
                kind = int(scene.agents.types[row])
                velocity = velocities[row, step] if kind < MOVING_TYPES else None
                found.append(tracked(token, AGENT_TYPES[kind], poses[row, step], scene.agents.sizes[row], velocity))
        yield SimpleNamespace(tracked_objects=found)


def layers(scene):
    lanes, blocks = scene.map.lanes, scene.map.roadblocks
    for row, name in enumerate(lanes.ids):
        yield name, "LANE_CONNECTOR" if lanes.connector[row] else "LANE", lanes.polygons[row]
    for row, name in enumerate(blocks.ids):
        if not blocks.connector[row]:
            yield name, "ROADBLOCK", blocks.polygons[row]
    for row, name in enumerate(scene.map.intersections.ids):
        yield name, "INTERSECTION", scene.map.intersections.polygons[row]


def cache_of(scene, plan):
    tokens, kinds, polygons = zip(*layers(scene), strict=True)
    lanes = scene.map.lanes
    shapes = {name: shapely.Polygon(lanes.polygons[row].numpy()) for row, name in enumerate(lanes.ids)}
    until = {name: 3.0 for name in lanes.ids if name == "through"}  # `crossing` is red until 3 s
    red = [[name for name, end in until.items() if step * 0.1 < end] for step in range(41)]
    states = [SimpleNamespace(rear_axle=pose(row)) for row in plan.trajectory]
    past = [ego_state(scene.ego, row) for row in range(len(scene.ego.times))]
    return SimpleNamespace(
        file_path=Path("log/unknown/token/metric_cache.pkl"),
        drivable_area_map=SimpleNamespace(
            tokens=list(tokens),
            map_types=[SimpleNamespace(name=kind) for kind in kinds],
            _geometries=[shapely.Polygon(each.numpy()) for each in polygons],
        ),
        observation=SimpleNamespace(
            detections_tracks=list(tracks(scene)),
            _occupancy_maps_tl=[
                ([f"red_light_{name}" for name in names], [shapes[name] for name in names]) for names in red
            ],
        ),
        ego_state=past[-1],
        past_human_trajectory=SimpleNamespace(get_sampled_trajectory=lambda: past),
        human_trajectory=None if scene.human is None else SimpleNamespace(poses=scene.human.numpy()),
        trajectory=SimpleNamespace(get_sampled_trajectory=lambda: states),
        centerline=SimpleNamespace(discrete_path=[SimpleNamespace(x=float(x), y=float(y)) for x, y in plan.centerline]),
        route_lane_ids=[lanes.ids[row] for row in plan.route_lanes],
    )


@pytest.fixture(scope="module")
def cases():
    found = list(scenes().values())
    scorer = Scorer(found)
    scene = torch.arange(len(found)).repeat_interleave(4)
    caches = [cache_of(one, plan) for one, plan in zip(found, scorer.plans, strict=True)]
    return caches, scorer(candidates().repeat(len(found), 1, 1), scene), scene


def test_a_scorer_over_caches_gives_the_scenes_scores(cases):
    caches, expected, scene = cases
    found = scorer_of(caches)(candidates().repeat(len(caches), 1, 1), scene)
    for name in COLUMNS:
        assert torch.allclose(found.columns[name], expected.columns[name], rtol=0, atol=1e-9), name
    assert torch.allclose(found.pdm_score, expected.pdm_score, rtol=0, atol=1e-9)
    assert torch.allclose(found.states, expected.states, rtol=0, atol=1e-9)


def test_the_pages_function_gives_rewards_and_violations(cases):
    caches, expected, scene = cases
    page = (Path(drop_in.__file__).parent / "README.md").read_text(encoding="utf-8")
    [block] = re.findall(r"```python\n(# instead of navsim.*?)```", page, re.DOTALL)
    names = {}
    exec(block, names)
    loader = SimpleNamespace(get_from_token=lambda token: caches[int(token)])
    tokens = [str(row) for row in range(len(caches))]
    rewards, violations = names["rewards"](loader, tokens, candidates().repeat(len(caches), 1, 1), scene)
    assert torch.allclose(rewards, expected.rewards(), rtol=0, atol=1e-9)
    assert all(torch.equal(violations[name], value) for name, value in expected.violations().items())


def test_vehicles_of_caches_react_on_the_maps_lanes(monkeypatch):
    """As in the scenes that the caches were made of."""
    found = list(scenes().values())
    before = Scorer(found, Reactive())
    caches = [cache_of(one, plan) for one, plan in zip(found, before.plans, strict=True)]

    def map_lanes(cache):
        lanes = next(one for one, held in zip(found, caches, strict=True) if held is cache).map.lanes

        def lane(name, connector):
            row = lanes.ids.index(name)
            assert connector == bool(lanes.connector[row])
            line = [SimpleNamespace(x=x, y=y) for x, y in lanes.centerlines[row].tolist()]
            limit = float(lanes.speed_limit[row])
            path = SimpleNamespace(discrete_path=line)
            return SimpleNamespace(baseline_path=path, speed_limit_mps=None if limit != limit else limit)

        return lane

    monkeypatch.setattr(drop_in, "map_lanes", map_lanes)
    poses, scene = candidates().repeat(len(found), 1, 1), torch.arange(len(found)).repeat_interleave(4)
    expected = before(poses, scene)
    got = scorer_of(caches, reactive=True)(poses, scene)
    for name in COLUMNS:
        assert torch.allclose(got.columns[name], expected.columns[name], rtol=0, atol=1e-9), name
    alone, _ = devkit_score(caches[0], poses[0].numpy(), traffic=type("NavsimIDMTrafficAgents", (), {})())
    assert float(alone["pdm_score"].iloc[0]) == pytest.approx(float(expected.pdm_score[0]), abs=1e-9)


HOLES = [[20.0, -0.9], [20.0, -0.3], [24.0, -0.3], [24.0, -0.9]], [[30.0, -2.0], [31.0, -2.0], [30.0, -1.0]]
"""Under the left corners of an ego that goes straight on, and between its corners."""


def test_holes_of_polygons_are_off_the_road():
    """Against shapely, corner by corner."""
    scene = straight_road()
    [plan] = Scorer([scene]).plans
    cache = cache_of(scene, plan)
    areas = cache.drivable_area_map
    for row, kind in enumerate(areas.map_types):
        if kind.name == "ROADBLOCK" and areas.tokens[row] == "east":
            areas._geometries[row] = shapely.Polygon(areas._geometries[row].exterior, HOLES)
    poses = torch.stack([straight(speed, left=left) for speed in (0.5, 4.0, 8.0, 13.0) for left in (-1.2, 0.0, 2.5)])
    scores = scorer_of([cache], human_filter=False)(poses, torch.zeros(12, dtype=torch.int64))
    shapes = [shape for shape, kind in zip(areas._geometries, areas.map_types, strict=True) if kind.name == "ROADBLOCK"]
    on_road = shapely.contains_xy(np.array(shapes)[:, None], *corners(scores.states).reshape(-1, 2).T.numpy()).any(0)
    expected = on_road.reshape(12, -1).all(1)
    assert scores.columns["drivable_area_compliance"].bool().tolist() == expected.tolist()
    filled = Scorer([scene], human_filter=False)(poses, torch.zeros(12, dtype=torch.int64))
    assert 0 < expected.sum() < filled.columns["drivable_area_compliance"].sum()


def test_areas_of_several_parts_are_one_area():
    """Roads, lanes and carparks of a map may be MultiPolygons; empty ones hold nothing."""
    scene = straight_road()
    [plan] = Scorer([scene]).plans
    poses = torch.stack([straight(speed, left=left) for speed in (0.5, 8.0, 13.0) for left in (-1.2, 0.0, 2.5, 9.0)])
    rows = torch.zeros(len(poses), dtype=torch.int64)

    def columns(split, *more):
        cache = cache_of(scene, plan)
        areas = cache.drivable_area_map
        areas._geometries = [split(shape) for shape in areas._geometries]
        for number, shape in enumerate(more):
            areas.tokens.append(f"carpark {number}")
            areas.map_types.append(SimpleNamespace(name="CARPARK_AREA"))
            areas._geometries.append(shape)
        return scorer_of([cache], human_filter=False)(poses, rows).columns

    def two_parts(shape):
        """Halves whose common border, which is in neither, lies between the corners of the simulated cars."""
        low_x, low_y, high_x, high_y = shape.bounds
        halves = [(low_x, 43.21), (43.21, high_x)]
        return shapely.MultiPolygon([shapely.box(*shape.bounds) & shapely.box(a, low_y, b, high_y) for a, b in halves])

    whole = columns(lambda shape: shape)
    halved = columns(two_parts)
    assert all(torch.equal(halved[name], column) for name, column in whole.items())
    carpark = shapely.MultiPolygon([shapely.box(200, 0, 205, 5), shapely.box(-60, -20, 160, 20)])
    wide = columns(lambda shape: shape, carpark, shapely.MultiPolygon(), shapely.Polygon())
    compliance = "drivable_area_compliance"
    assert wide[compliance].tolist() == [1.0] * len(poses)
    assert whole[compliance].tolist() != [1.0] * len(poses)


def test_repeated_vertices_and_caches_for_training():
    scene = straight_road()
    [plan] = Scorer([scene]).plans
    cache, poses, row = cache_of(scene, plan), straight()[None], torch.zeros(1, dtype=torch.int64)
    expected = scorer_of([cache])(poses, row).columns
    areas = cache.drivable_area_map
    twice = [np.repeat(shape.exterior.coords, 2, axis=0) for shape in areas._geometries]
    areas._geometries = [shapely.Polygon(points) for points in twice]
    found = scorer_of([cache])(poses, row).columns
    assert all(torch.equal(found[name], column) for name, column in expected.items())
    del cache.trajectory
    cache.pdm_progress = 20.0
    with pytest.raises(InputError, match="pdm_progress"):
        scorer_of([cache])


def test_pdm_score_has_the_devkits_signature_and_columns(cases):
    caches, expected, _ = cases
    for filtered in (True, False):
        frame, states = devkit_score(caches[0], candidates()[0].numpy(), filtered)
        columns = expected.columns if filtered else expected.unfiltered
        expected_row = {name: float(columns[name][0]) for name in COLUMNS}
        assert {name: frame[name].iloc[0] for name in COLUMNS} == pytest.approx(expected_row)
        row = frame.iloc[0]
        assert row["multiplicative_metrics_prod"] == (1.0 if filtered else 0.0)
        weighted = np.dot(row["weighted_metrics"][:4], row["weighted_metrics_array"][:4]) / 14
        total = row["multiplicative_metrics_prod"] * weighted
        assert total == pytest.approx(float(expected.epdms[0]) if filtered else float(expected.pdm_score[0]))
        assert row["pdm_score"] == pytest.approx(float(expected.pdm_score[0]))
        assert states.shape == (41, 11)


def test_only_another_cache_or_filter_is_converted_again(cases, monkeypatch):
    caches, expected, _ = cases
    converted = []
    convert = drop_in.scorer_of
    monkeypatch.setattr(drop_in, "scorer_of", lambda *args, **given: converted.append(1) or convert(*args, **given))
    drop_in._kept_scorer.cache_clear()
    counts = []
    for row, filtered in ((0, True), (0, True), (0, False), (2, False), (2, False), (0, True)):
        frame, _ = devkit_score(caches[row], candidates()[0].numpy(), filtered)
        assert float(frame["pdm_score"].iloc[0]) == pytest.approx(float(expected.pdm_score[4 * row]))
        counts.append(len(converted))
    assert counts == [1, 1, 2, 3, 3, 4]


@pytest.mark.parametrize(
    ("sampling", "traffic", "words"),
    [
        (SimpleNamespace(num_poses=50, interval_length=0.1), REPLAY, "40 poses"),
        (SAMPLING, object(), "LogReplayTrafficAgents"),
        (SAMPLING, REPLAY, "finite"),
    ],
)
def test_what_a_cache_cannot_score_is_refused(cases, sampling, traffic, words):
    with pytest.raises(InputError, match=words):
        devkit_score(cases[0][0], np.full((8, 3), np.nan), None, sampling, traffic)
