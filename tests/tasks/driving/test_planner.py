"""A planner's contexts, its drives in few numbers, and their signals."""

import math
from dataclasses import replace

import pytest
import torch

from driving_scenes.generator import GeneratedScenes
from driving_scenes.generator.rigid_motion import moved
from lightning_cgrpo.core.rollout import PromptGroups, Rollouts
from lightning_cgrpo.policies.chain_policy import ChainPolicy
from lightning_cgrpo.samplers.chain import ChainSampler
from lightning_cgrpo.tasks.driving.drive_numbers import ACCELERATION, CURVATURE, drive, numbers_of
from lightning_cgrpo.tasks.driving.planner_head import PlannerHead
from lightning_cgrpo.tasks.driving.planner_inputs import CONTEXT, LANE_POINTS, DrivingInputs, scene_context
from lightning_cgrpo.tasks.driving.trajectory_task import TrajectoryTask
from navsim_score.scorer import Scorer
from navsim_score.scoring.comfort import extended_comfort
from tests.driving_scenes.scenes import agent, straight_road
from tests.refusals import refused


@pytest.fixture(scope="module")
def pair():
    made = GeneratedScenes(seed=3)
    return [made.scenes("test")[0], made.next_frames("test")[0]]


def prompts(scenes):
    sample = torch.zeros(len(scenes), dtype=torch.int64)
    return PromptGroups(torch.arange(len(scenes)), {"scene": scenes}, sample)


def test_a_drive_is_the_motion_of_its_accelerations_and_curvatures():
    numbers = torch.tensor([1.0, 1.0, -1.0, -1.0, 0.0, 0.0, 0.0, 0.0])
    straight = drive(numbers, torch.tensor(8.0))
    times = torch.arange(1, 17, dtype=torch.float64) / 4
    until = 8 * times + ACCELERATION * times.square() / 2
    after = 8 * 2 + ACCELERATION * 2 + (8 + 2 * ACCELERATION) * (times - 2) - ACCELERATION * (times - 2).square() / 2
    assert torch.allclose(straight[:, 0], torch.where(times <= 2, until, after))
    assert (straight[:, 1:] == 0).all()
    # Constant curvature is a circle, and brakes don't drive backwards.
    circle = drive(torch.tensor([0.0] * 4 + [2.0] * 4), torch.tensor(10.0))
    radius = 1 / (2 * CURVATURE)
    center = torch.tensor([0.0, radius], dtype=torch.float64)
    assert ((circle[:, :2] - center).norm(dim=1) - radius).abs().max() < 0.02
    assert circle[-1, 2].item() == pytest.approx(10 * 4 / radius)
    stopped = drive(torch.tensor([-3.0] * 4 + [0.0] * 4), torch.tensor(2.0))
    assert (stopped[:, 0].diff() >= 0).all() and stopped[-1, 0] == stopped[2, 0]


def test_the_humans_drives_are_near_to_those_of_their_numbers():
    scenes = GeneratedScenes(0).scenes("train")
    for number in range(0, 60, 10):
        scene = scenes[number]
        speed = scene.ego.velocities[-1, 0]
        found = drive(numbers_of(scene.human, float(speed)), speed)[1::2]
        assert (found - scene.human)[:, :2].norm(dim=1).mean() < 0.5, number


def test_numbers_of_a_drive_are_the_same_where_its_yaw_wraps():
    numbers = torch.tensor([0.0] * 4 + [3.0, 4.0, 4.0, 2.0])
    poses = drive(numbers, torch.tensor(14.0))[1::2]
    wrapped = poses.clone()
    wrapped[:, 2] = torch.atan2(poses[:, 2].sin(), poses[:, 2].cos())
    assert not torch.equal(wrapped[:, 2].sign(), poses[:, 2].sign())
    assert torch.allclose(numbers_of(wrapped, 14.0), numbers_of(poses, 14.0), rtol=0, atol=1e-9)


def test_a_context_is_what_the_ego_sees(pair):
    """It doesn't depend on where the map's origin is, nor on what comes after t = 0."""
    scene = pair[0]
    context = scene_context(scene)
    assert torch.allclose(scene_context(moved(scene, 1.2, (300.0, -40.0))), context, rtol=0, atol=1e-4)
    later = scene.agents.states * (scene.agents.times <= 0)[:, None]
    assert torch.equal(scene_context(replace(scene, agents=replace(scene.agents, states=later))), context)
    assert context.shape == (CONTEXT,) and context.isfinite().all()
    assert context[0].item() == pytest.approx(float(scene.ego.velocities[-1, 0]) / 10, abs=1e-6)
    table = context[-64:].view(8, 8)
    distances = table[:, :2].norm(dim=1)[table[:, 7] == 1]
    assert (distances.diff() >= 0).all() and len(distances) > 0


def test_signals_are_the_scores_of_the_chains_ends(pair):
    torch.manual_seed(0)
    policy = ChainPolicy(PlannerHead(width=16, layers=1), DrivingInputs.size)
    groups = prompts(pair)
    draws = torch.rand(2, 3, policy.draws(), dtype=torch.float64)
    rollouts = ChainSampler(DrivingInputs()).rollout(policy, groups, 3, lambda *shape: draws)
    assert rollouts.actions.shape == (2, 3, 5, 8) and rollouts.info["poses"].shape == (2, 3, 16, 3)
    rollouts.info["poses"][1, 2] = torch.nan
    signals = TrajectoryTask().score(groups, rollouts)
    assert signals.keys() == TrajectoryTask.signals.keys()
    scorer, rows = Scorer(pair, human_filter=False), torch.arange(2).repeat_interleave(3)
    scores = scorer(rollouts.info["poses"].flatten(0, 1), rows, 0.25)
    for name in ("ego_progress", "no_at_fault_collisions", "history_comfort"):
        expected = scores.columns[name].view(2, 3).nan_to_num(0)
        expected = (expected == 1).float() if name == "no_at_fault_collisions" else expected.float()
        assert torch.equal(signals[name].value, expected), name
    assert signals["malformed"].value.tolist() == [[0, 0, 0], [0, 0, 1]]
    states = scores.states.unflatten(0, (2, 3))
    comfort = extended_comfort(states[1], states[0]).float()
    assert torch.equal(signals["two_frame_extended_comfort"].value, comfort.expand(2, -1))
    assert signals["two_frame_extended_comfort"].applicable.all()


@pytest.mark.parametrize("shape", [(1, 2, 8, 3), (1, 2, 40, 3), (1, 2, 16, 2), (2, 16, 3), (1, 1, 16, 3), None])
def test_poses_of_other_times_are_refused(pair, shape):
    """8 poses every 0.5 s would be scored as a drive of double speed."""
    info = {} if shape is None else {"poses": torch.zeros(shape)}
    rollouts = Rollouts(torch.zeros(1, 2, 5, 8), torch.ones(1, 2, 5, dtype=torch.bool), {}, info=info)
    told = refused(TrajectoryTask().score, prompts(pair[:1]), rollouts)
    assert "to be [1, 2, 16, 3], 16 poses every 0.25 s" in told and "try sampler.inputs" in told
    assert ("NoneType" if shape is None else str(list(shape))) in told


RIGHT = -1.75
"""The middle of the ego's lane."""


def test_a_context_has_the_numbers_of_its_scene():
    """Read off by hand: 8 m/s on a lane along y = -1.75 with a limit, behind a slower car and beside a pedestrian."""
    agents = [
        agent("car", 20.0, RIGHT, speed=5.0),
        agent("walker", -6.0, 3.0, math.pi / 2, 1.0, "pedestrian", (0.6, 0.5)),
        agent("far", 90.0, RIGHT),
    ]
    scene = straight_road(agents, speed=8.0)
    context = scene_context(scene).double()
    assert context[:4].tolist() == pytest.approx([0.8, 0.0, 0.0, 0.0], abs=1e-6)
    lane = context[9:27].view(6, 3)
    assert lane[:, 0].tolist() == pytest.approx([meters / 20 for meters in LANE_POINTS], abs=1e-6)
    assert lane[:, 1:].abs().max() < 1e-6
    walker, car, *missing = context[27:].view(8, 8)
    assert walker.tolist() == pytest.approx([-6 / 20, (3 - RIGHT) / 20, 0, 0.1, 0.6 / 5, 0.5 / 2, 1, 1], abs=1e-6)
    assert car.tolist() == pytest.approx([1.0, 0.0, 0.5, 0.0, 4.6 / 5, 1.9 / 2, 1, 1], abs=1e-6)
    assert not torch.stack(missing).any()
    # An ego that is turned to the left has the lane turned to the right.
    turned = replace(scene.ego, poses=scene.ego.poses + torch.tensor([0.0, 0.0, 0.1], dtype=torch.float64))
    yaws = scene_context(replace(scene, ego=turned))[9:27].view(6, 3)[:, 2]
    assert yaws.tolist() == pytest.approx([-0.1] * 6, abs=1e-6)
