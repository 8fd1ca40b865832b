"""A braked plan stays on its path, and loses speed at the given rate until it stands."""

import math

import pytest
import torch

from benchmarks.navsim.braking import ANSWERS, MEASURES, PAIRS, START, Measured, averaged, braked, compared

TIMES = torch.arange(1, 17, dtype=torch.float64) / 4


def plan(distances: torch.Tensor) -> torch.Tensor:
    """A quarter circle of 20 m radius to the left, in x, y, yaw."""
    angle = distances / 20
    return torch.stack([20 * angle.sin(), 20 - 20 * angle.cos(), angle], -1)


def test_a_braked_plan_stays_on_its_path():
    slow = braked(plan(6 * TIMES)[None], 1.0)[0]
    expected = plan(6 * TIMES - TIMES**2 / 2)
    assert (slow - expected).abs().max() < 0.03  # chords of the circle
    assert torch.allclose((slow[:, :2] - torch.tensor([0.0, 20.0])).norm(dim=-1), slow.new_tensor(20.0), atol=0.02)


def test_it_stands_where_its_speed_is_gone_and_turns_the_short_way():
    slow = braked(plan(4 * TIMES)[None], 2.0)[0]
    assert (slow[8:] == slow[8]).all()
    assert slow[8, :2].norm() == pytest.approx(4.0, abs=0.1)
    beyond = plan(6 * TIMES)
    beyond[:, 2] = torch.remainder(beyond[:, 2] + 3.0 + math.pi, math.tau) - math.pi  # passes the angle of pi
    turned = torch.remainder(braked(beyond[None], 0.5)[0, :, 2] - 3.0, math.tau)
    assert (turned.diff() >= 0).all() and turned[-1] < 1.3


def test_nothing_changes_without_braking_and_malformed_plans_stay_so():
    plans = torch.stack([plan(6 * TIMES), torch.full((16, 3), torch.nan, dtype=torch.float64), 0 * plan(TIMES)])
    assert torch.allclose(braked(plans, 0.0), plans, atol=1e-9, equal_nan=True)
    assert braked(plans, 1.0)[1].isnan().all()


def test_seeds_are_averaged_by_scene_before_drivers_are_compared():
    means = {"start": [0.0, 0.5, 1.0], "oracle": [1.0, 0.5, 1.5]}
    tables = {name: {measure: list(values) for measure in MEASURES} for name, values in means.items()}
    assert averaged([*tables.values()]) == {measure: [0.5, 0.5, 1.25] for measure in MEASURES}
    found = compared(tables)
    assert list(found) == ["oracle less start"] and ("oracle", "start") in PAIRS
    assert found["oracle less start"]["NC"].startswith("+0.5000 (")


def test_the_auc_is_the_share_of_pairs_of_scenes_that_braking_orders_rightly():
    """The driver brakes by 3 and 1 m in scenes with a collision, and by 2, 0 and 0 m in others. A sixth is unknown."""
    meters_less = [3.0, 1.0, 2.0, 0.0, 0.0, torch.nan]
    found = Measured()
    found.training[START] = {"NC": 2 * [0.0, 1.0, 1.0, 1.0] + 4 * [1.0, 1.0, 1.0, 1.0]}
    found.lengths[START] = [torch.full((ANSWERS,), 10.0) for _ in meters_less]
    found.lengths["driver"] = [torch.full((ANSWERS,), 10.0 - meters) for meters in meters_less]
    found.lengths["driver"][0][0] = torch.nan  # a malformed answer
    assert found.auc("driver") == pytest.approx(5 / 6)
    assert found.auc(START) == 0.5
    found.training[START] = {"NC": [1.0] * 24}
    assert math.isnan(found.auc("driver"))
