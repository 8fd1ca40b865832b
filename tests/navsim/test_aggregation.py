"""Scores worked out by hand, and the official two-stage group."""

import json
import math

import pytest
import torch

from lightning_cgrpo.navsim.aggregation import (
    EXTENDED_COMFORT,
    MULTIPLIERS,
    WEIGHTS,
    Group,
    endpoints,
    epdms,
    follow_up_weights,
    human_filtered,
    multiplicative_metrics_prod,
    two_stage_scores,
    weighted_average,
)
from lightning_cgrpo.navsim.scoring.comfort import extended_comfort
from lightning_cgrpo.navsim.simulation.simulate import simulate
from lightning_cgrpo.scenes.json_fields import Field
from lightning_cgrpo.scenes.scene_file import map_from_json, scene_from_json


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def columns(rows=1, **values):
    """All 1 except for these."""
    names = [*MULTIPLIERS, *WEIGHTS]
    assert set(values) <= {*names, EXTENDED_COMFORT}
    return {name: torch.ones(rows, dtype=torch.float64) for name in names} | {
        name: tensor(value).expand(rows) for name, value in values.items()
    }


@pytest.mark.parametrize(
    ("values", "average"),
    [
        ({}, 1.0),
        ({"ego_progress": 0.4}, 11 / 14),
        ({"time_to_collision_within_bound": 0.0}, 9 / 14),
        ({"lane_keeping": 0.0, "history_comfort": 0.0}, 10 / 14),
        ({EXTENDED_COMFORT: 0.0}, 14 / 16),
        ({EXTENDED_COMFORT: 1.0, "ego_progress": 0.4}, 13 / 16),
        ({EXTENDED_COMFORT: math.nan, "ego_progress": 0.4}, 11 / 14),
    ],
)
def test_weighted_average(values, average):
    assert weighted_average(columns(**values)).item() == pytest.approx(average, abs=1e-15)
    assert epdms(columns(**values)).item() == pytest.approx(average, abs=1e-15)


def test_rows_with_and_without_a_previous_frame():
    found = weighted_average(columns(3, history_comfort=0.0, two_frame_extended_comfort=[1.0, 0.0, math.nan]))
    assert torch.allclose(found, tensor([14 / 16, 12 / 16, 12 / 14]))


@pytest.mark.parametrize("name", MULTIPLIERS)
def test_multipliers_multiply(name):
    half = columns(**{name: 0.5, "ego_progress": 0.4})
    assert multiplicative_metrics_prod(half).item() == 0.5
    assert epdms(half).item() == pytest.approx(0.5 * 11 / 14, abs=1e-15)
    assert epdms(columns(**{name: 0.0})).item() == 0


def test_a_row_that_failed_has_no_score():
    failed = {name: torch.full((1,), math.nan, dtype=torch.float64) for name in columns()}
    assert epdms(failed).isnan().all()


def test_what_the_human_fails_is_forgiven():
    """Only where it is exactly 0, and only where there is a human."""
    candidates = columns(
        3, no_at_fault_collisions=0.0, traffic_light_compliance=0.0, lane_keeping=0.0, two_frame_extended_comfort=0.0
    )
    human = columns(3, no_at_fault_collisions=0.5, traffic_light_compliance=0.0, lane_keeping=[0.0, 1.0, 0.0])
    found = human_filtered(candidates, human, torch.tensor([True, True, False]))
    assert found["no_at_fault_collisions"].tolist() == [0, 0, 0]
    assert found["traffic_light_compliance"].tolist() == [1, 1, 0]
    assert found["lane_keeping"].tolist() == [1, 0, 0]
    assert found[EXTENDED_COMFORT].tolist() == [0, 0, 0]
    assert list(found) == list(candidates) and candidates["lane_keeping"].tolist() == [0, 0, 0]


def test_follow_ups_count_by_where_they_start():
    found = follow_up_weights(tensor([1.0, 2.0]), tensor([[1.0, 2.0], [1.0, 2.3], [1.4, 2.0]]))
    expected = tensor([1.0, math.exp(-0.09 / 0.2), math.exp(-0.16 / 0.2)])
    assert torch.allclose(found, expected / expected.sum())


@pytest.mark.parametrize(("distance", "uniform"), [(1.8, False), (1.93, True), (1e3, True), (math.nan, True)])
def test_without_a_near_follow_up_all_count_the_same(distance, uniform):
    starts = tensor([[0.0, distance], [0.0, 2 * distance]])
    found = follow_up_weights(torch.zeros(2, dtype=torch.float64), starts)
    assert found.sum() == 1 and (found.tolist() == [0.5, 0.5]) == uniform
    batch = follow_up_weights(torch.zeros(4, 2, dtype=torch.float64), starts.expand(4, 2, 2))
    assert torch.equal(batch, found.expand(4, 2))


def test_a_plan_ends_in_the_map():
    poses = tensor([[1.0, 0.0, 0.0], [3.0, 1.0, 0.5]])
    assert torch.allclose(endpoints(tensor([10.0, 20.0, math.pi / 2, 5, 0, 0, 0]), poses), tensor([9.0, 23.0]))


def group(first, follow_ups, weights):
    return Group(tensor([first]), tensor(follow_ups)[:, None], tensor(weights))


def test_two_stages():
    """Products per group, then means; weights needn't sum up to 1."""
    now = group(0.8, [1.0, 0.5], [1.0, 3.0])
    previous = group(0.5, [0.4], [0.2])
    other = group(1.0, [1.0], [1.0])
    found = two_stage_scores([(now, previous), (other, other)])
    assert found.stage_one.item() == pytest.approx((0.8 + 0.5 + 1 + 1) / 4)
    assert found.stage_two.item() == pytest.approx((0.625 + 0.4 + 1 + 1) / 4)
    assert found.combined.item() == pytest.approx(((0.8 * 0.625 + 0.5 * 0.4) / 2 + 1) / 2)
    assert found.left_out.tolist() == [0]


def test_a_failed_frame_is_left_out_and_counted():
    good, bad = group(0.5, [0.5], [1.0]), group(0.5, [math.nan, 1.0], [0.5, 0.5])
    alone = Group(tensor([0.5]), torch.zeros(0, 1, dtype=torch.float64), tensor([]))
    found = two_stage_scores([(good, good), (good, bad), (alone, good)])
    assert found.combined.item() == 0.25 and found.left_out.tolist() == [2]
    assert found.stage_one.item() == 0.5 and found.stage_two.item() == 0.5


def test_the_official_two_stage_group(shared_data):
    case = json.loads((shared_data / "driving/cases/two_stage_g0.json").read_text())
    road_map = map_from_json(Field(case["map"], "two_stage_g0.json", "map"))
    scenes = {name: scene_from_json(content, name, road_map) for name, content in case["scenes"].items()}
    starts = {
        name: torch.cat([scene.ego.poses[-1], scene.ego.velocities[-1], scene.ego.accelerations[-1]])
        for name, scene in scenes.items()
    }
    states = {name: simulate(starts[name], tensor(plan)) for name, plan in case["plans"].items()}
    ends = {name: endpoints(starts[name], tensor(plan)) for name, plan in case["plans"].items()}
    first, follow_ups = (case["group"]["now"], case["group"]["prev"]), case["group"]["pairs"]
    rows, official, scores = case["rows"], case["official"], {}
    for now, previous in [first, *follow_ups]:
        comfort = extended_comfort(
            states[now], states[previous], rows[now]["start_time"] - rows[previous]["start_time"]
        )
        for name in (now, previous):
            values = {column: tensor(rows[name][column]) for column in (*MULTIPLIERS, *WEIGHTS)}
            scores[name] = epdms(values | {EXTENDED_COMFORT: comfort.double()})
            assert comfort.item() == official[name]["two_frame_extended_comfort"]
            assert scores[name].item() == pytest.approx(official[name]["score"], abs=1e-9)
            assert torch.allclose(ends[name], tensor(rows[name]["endpoint"]), rtol=0, atol=1e-9)
    groups = []
    for frame, name in enumerate(first):
        names = [pair[frame] for pair in follow_ups]
        weights = follow_up_weights(ends[name], torch.stack([starts[other][:2] for other in names]))
        assert torch.allclose(weights, tensor([official[other]["weight"] for other in names]), rtol=0, atol=1e-12)
        groups.append(Group(scores[name][None], torch.stack([scores[other] for other in names])[:, None], weights))
    assert two_stage_scores([(groups[0], groups[1])]).combined.item() == pytest.approx(case["group_score"], abs=1e-9)
    for one in case["weight_cases"]:
        found = follow_up_weights(tensor(one["endpoint"]), tensor(one["starts"]))
        assert torch.allclose(found, tensor(one["weights"]), rtol=0, atol=1e-12)
