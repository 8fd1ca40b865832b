"""Options instead of official quirks: what differs with each, while the default stays official."""

import math

import pytest
import torch

from lightning_cgrpo.navsim.batch.scene_batch import SceneBatch
from lightning_cgrpo.navsim.columns import COLUMNS
from lightning_cgrpo.navsim.expert.pdm_closed import plan
from lightning_cgrpo.navsim.official_quirks import OFFICIAL, Fixes
from lightning_cgrpo.navsim.scorer import Scorer
from lightning_cgrpo.navsim.scoring.comfort import CHECKS
from lightning_cgrpo.navsim.simulation.simulate import simulate
from lightning_cgrpo.navsim.traffic.log_replay import LogReplay
from lightning_cgrpo.navsim.traffic.reactive import Reactive
from lightning_cgrpo.scenes.scene_file import scene_from_json, scene_to_json
from lightning_cgrpo.scenes.vehicle import centers
from tests.navsim.reactive_oracle import worst
from tests.navsim.test_reactive import CANDIDATES, busy, merge
from tests.scenes.scenes import SPEED, TIMES, agent, straight, straight_road

LEFT, ONCOMING = 1.75, 5.25


def score(scene, *candidates, fixes=OFFICIAL, traffic=None):
    rows = torch.zeros(len(candidates), dtype=torch.int64)
    return Scorer([scene], traffic, human_filter=False, fixes=fixes)(torch.stack(candidates), rows)


def drive(scene, poses, policy):
    batch = SceneBatch.of([scene], plan([scene]))
    rows = torch.zeros(len(poses), dtype=torch.int64)
    states = simulate(batch.start[rows], poses)
    return policy(batch, states, rows), states


def assert_differ_only_in(name, one, other):
    assert [column for column in COLUMNS if not torch.equal(one.columns[column], other.columns[column])] == [name]


def test_nothing_is_fixed_by_default():
    assert Fixes() == OFFICIAL and not any(vars(OFFICIAL).values())
    assert not any(value for value in vars(Reactive()).values() if isinstance(value, bool))


def test_masked_progress():
    scene, stop = straight_road([agent("parked", 25, -1.75)]), straight(SPEED, -2.5)
    official = score(scene, straight(), stop)
    fixed = score(scene, straight(), stop, fixes=Fixes(masked_progress=True))
    assert_differ_only_in("ego_progress", official, fixed)
    assert official.columns["ego_progress"][0] == 1 and fixed.columns["ego_progress"][0] == 0
    assert official.columns["ego_progress"][1] == fixed.columns["ego_progress"][1] > 0
    half = straight_road([agent("cone", 25, -1.75, kind="traffic_cone", size=(0.5, 0.5))])
    masked = score(half, straight(), fixes=Fixes(masked_progress=True))
    most = torch.maximum(masked.pdm_progress, masked.progress / 2)
    assert masked.columns["ego_progress"].item() == pytest.approx((masked.progress / 2 / most).item())


@pytest.mark.parametrize("first", [2.0, 0.0])
def test_current_speed(first):
    """It comes from the side, so that the ego is at fault only where it stands."""
    other = agent("other", 3, 6.0, -1.57, speed=2.0)
    for state in other["states"]:
        later = state[0] > 0
        state[4:] = [0.0, -first if not later else first - 2.0]
    official, fixed = (
        score(straight_road([other], speed=1.0), straight(1.0), fixes=fixes)
        for fixes in (OFFICIAL, Fixes(current_speed=True))
    )
    assert official.columns["no_at_fault_collisions"].item() == (first > 0)
    assert fixed.columns["no_at_fault_collisions"].item() == (first == 0)


def test_speeds_of_traffic():
    others = [agent("car", 20.0, LEFT, speed=5.0), agent("parked", 30.0, -6.0), agent("cone", 9.0, 9.0, kind="barrier")]
    scene = straight_road([*others, agent("walker", 20.0, -8.0, kind="pedestrian", speed=1.0)])
    for policy in (LogReplay(), Reactive()):
        traffic, _ = drive(scene, straight()[None], policy)
        moved = traffic.poses[0, :, 1:, :2].diff(dim=1).norm(dim=-1)
        assert torch.allclose(moved, 0.1 * traffic.speeds[0, :, 1:-1])
        assert torch.equal(traffic.speeds[..., 0], traffic.first_speed)


def test_gapless_history():
    """A turn that ends now, and then straight on: without its last sample the history jumps at the end of the turn."""
    ego = [
        {"t": t, "pose": [SPEED * t, -1.75, 0.38 * t], "velocity": [SPEED, 0.0], "acceleration": [0.0, 0.0]}
        for t in TIMES[:4]
    ]
    scene = straight_road(ego=ego)
    official = score(scene, straight())
    fixed = score(scene, straight(), fixes=Fixes(gapless_history=True))
    assert_differ_only_in("history_comfort", official, fixed)
    assert [name for name, held in zip(CHECKS, official.comfort[0], strict=True) if not held] == ["yaw_acceleration"]
    assert fixed.comfort.all()


def test_ego_box_at_center():
    scene = straight_road([agent("tail", -14.0, -1.75, speed=8.0)])
    official, fixed = (
        drive(scene, straight(8.0, -1.0)[None], Reactive(ego_box_at_center=value))[0].poses[0, 0, -1, 0]
        for value in (False, True)
    )
    assert 0.5 < fixed - official < 1.461


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_ego_box_at_center_as_one_by_one(seed):
    scene = busy(seed)
    traffic, states = drive(scene, CANDIDATES, Reactive(ego_box_at_center=True))
    states = torch.cat([centers(states), states[..., 2:]], -1)
    for row in range(len(states)):
        assert worst(scene, states[row], traffic.poses[row], traffic.present[row]) < 5e-3


def test_wrapped_headings():
    """Lanes to the west and to the north overlap where a vehicle is that drives to the west."""
    content = scene_to_json(straight_road([agent("car", 40.0, ONCOMING, -3.1, speed=5.0)]))
    west = next(lane for lane in content["map"]["lanes"] if lane["id"] == "west0")
    line = [[40.0, y] for y in range(-40, 60, 5)]
    content["map"]["lanes"].append({**west, "id": "north", "centerline": line})
    scene = scene_from_json(content, "overlapping")
    official, fixed = (
        drive(scene, straight()[None], Reactive(wrapped_headings=value))[0].poses[0, 0, 1, 2] for value in (False, True)
    )
    assert official.item() == pytest.approx(math.pi / 2)
    assert abs(fixed.item()) == pytest.approx(math.pi)


def test_own_speed_limits():
    """The lane to the north has a limit of 9 m/s, the one to the east none."""
    scene = merge([agent("north", 15.0, 30.0, math.pi / 2, 5.0), agent("east", -40.0, 0.0, speed=9.5)])
    official, fixed = (
        drive(scene, straight(20.0)[None], Reactive(own_speed_limits=value))[0] for value in (False, True)
    )
    assert torch.equal(official.poses[0, 0], fixed.poses[0, 0])
    assert (official.poses[0, 1, 2:, 0] < fixed.poses[0, 1, 2:, 0]).all()
