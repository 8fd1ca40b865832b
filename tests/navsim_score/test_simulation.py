"""The simulation against dense matrices, one row and one step at a time, and against the official simulator."""

import math

import numpy as np
import pytest
import torch

from driving_scenes.vehicle import REAR_AXLE_TO_CENTER, State, centers, corners
from navsim_score.simulation.interpolation import resample, unwrapped
from navsim_score.simulation.simulate import simulate

START = torch.tensor([10.0, -3.0, 2.5, 8.0, 0.3, 0.5, -0.2], dtype=torch.float64)


def wrap(angle):
    return np.arctan2(np.sin(angle), np.cos(angle))


def dense_profiles(poses):
    """Speeds and curvatures by the normal equations, as docs/navsim_score.md §3 writes them down."""
    count, dt = len(poses) - 1, 0.1
    matrix = np.zeros((2 * count, count))
    for i, yaw in enumerate(poses[:-1, 2]):
        for row, part in ((2 * i, np.cos(yaw)), (2 * i + 1, np.sin(yaw))):
            matrix[row, 0] = dt * part
            matrix[row, 1 : i + 1] = dt**2 * part
    # The official difference matrix: -1 on the diagonal, but its 1s are overwritten except for the last.
    penalty = np.zeros((count - 2, count))
    penalty[:, 1:-1] = -np.eye(count - 2)
    penalty[-1, -1] = 1
    square = matrix.T @ matrix + 1e-4 * penalty.T @ penalty
    solution = np.linalg.pinv(square) @ matrix.T @ np.diff(poses[:, :2], axis=0).reshape(-1)
    speed = solution[0] + np.concatenate([[0], np.cumsum(solution[1:] * dt)])

    matrix = np.tri(count) * (speed * dt**2)[:, None]
    matrix[:, 0] = speed * dt
    weights = np.full(count, 1e-2)
    weights[0] = 1e-10
    turns = wrap(np.diff(poses[:, 2]))
    solution = np.linalg.pinv(matrix.T @ matrix + np.diag(weights)) @ matrix.T @ turns
    return speed, solution[0] + np.concatenate([[0], np.cumsum(solution[1:] * dt)])


def dense_track(start, reference):
    """One row of `track`, with the horizon's ten matrices multiplied."""
    dt, base = 0.1, 3.089
    speed, curvature = dense_profiles(reference)
    states = np.zeros((len(reference), 11))
    states[0, :7] = start
    for k in range(len(reference) - 1):
        x, y, yaw, v, _, a, _, steer, _, yaw_rate, _ = states[k]
        ahead = min(k + 10, len(speed) - 1)
        to_x, to_y, to_yaw = reference[k]
        aside = -(x - to_x) * np.sin(to_yaw) + (y - to_y) * np.cos(to_yaw)
        error = np.array([aside, wrap(yaw - to_yaw), steer])
        if speed[ahead] <= 0.2 and v <= 0.2:
            command, rate = -0.5 * (v - speed[ahead]), 0.0
        else:
            command = -10 / 11 * (v - speed[ahead])
            total, effect, offset = np.eye(3), np.zeros(3), np.zeros(3)
            for j in range(10):
                reach = (v + command * dt * j) * dt
                step = np.array([[1, reach, 0], [0, 1, reach / base], [0, 0, 1]])
                total, effect, offset = step @ total, step @ effect, step @ offset
                effect[2] += dt
                offset[1] -= reach * curvature[min(k + j, len(curvature) - 1)]
            error = total @ error + offset
            error[1:] = wrap(error[1:])
            pull = effect * [1, 10, 0]
            rate = -(pull @ error) / (pull @ effect + 1)
        a = a + (command - a) / 3
        rate = rate * 2 / 3
        moved = states[k + 1]
        moved[:2] = x + v * np.cos(yaw) * dt, y + v * np.sin(yaw) * dt
        moved[State.YAW] = (yaw + v * np.tan(steer) / base * dt + math.pi) % (2 * math.pi) - math.pi
        moved[State.VX], moved[State.AX] = v + a * dt, a
        moved[State.STEER], moved[State.STEER_RATE] = np.clip(steer + rate * dt, -math.pi / 3, math.pi / 3), rate
        moved[State.YAW_RATE] = moved[State.VX] * np.tan(moved[State.STEER]) / base
        moved[State.YAW_ACC] = (moved[State.YAW_RATE] - yaw_rate) / dt
    return states


def candidates():
    """Random bends and speeds, and what no driver does: stand, turn on the spot, jump, go back, noise."""
    generator = torch.Generator().manual_seed(0)
    time = torch.arange(1, 9, dtype=torch.float64) * 0.5
    speed = 14 * torch.rand(12, 1, generator=generator, dtype=torch.float64)
    rate = 0.6 * (torch.rand(12, 1, generator=generator, dtype=torch.float64) - 0.5)
    yaw = rate * time
    bends = torch.stack([speed * time * yaw.cos(), speed * time * yaw.sin(), yaw], -1)
    still = torch.zeros(8, 3, dtype=torch.float64)
    spin = still.clone()
    spin[:, 2] = 1.9 * time
    jump = still + torch.tensor([900.0, 300.0, 0.0], dtype=torch.float64)
    back = torch.stack([-3 * time, 0 * time, 0 * time], -1)
    noise = bends[:2] + 1.5 * torch.randn(2, 8, 3, generator=generator, dtype=torch.float64)
    return torch.cat([bends, torch.stack([still, spin, jump, back]), noise])


def difference(one, other):
    """The greatest over states, of yaw modulo 2 pi."""
    gap = one - other
    gap[..., State.YAW] = torch.atan2(gap[..., State.YAW].sin(), gap[..., State.YAW].cos())
    return gap.abs().max().item()


def test_a_candidate_is_interpolated_linearly_in_the_frame_of_the_scene():
    poses = candidates()
    reference = resample(START, poses)
    at, knots = np.linspace(0, 4, 41), np.linspace(0, 4, 9)
    cos, sin = math.cos(START[2]), math.sin(START[2])
    for row, found in zip(poses.numpy(), reference.numpy(), strict=True):
        x = np.concatenate([[0], row[:, 0]]) * cos - np.concatenate([[0], row[:, 1]]) * sin + START[0].item()
        y = np.concatenate([[0], row[:, 0]]) * sin + np.concatenate([[0], row[:, 1]]) * cos + START[1].item()
        yaw = np.unwrap(wrap(np.concatenate([[0], row[:, 2]]) + START[2].item()))
        for column, values in enumerate((x, y)):
            np.testing.assert_allclose(found[:, column], np.interp(at, knots, values), atol=1e-10)
        np.testing.assert_allclose(wrap(found[:, 2] - np.interp(at, knots, yaw)), 0, atol=1e-10)
        assert (found[:, 2] >= -math.pi).all() and (found[:, 2] < math.pi).all()


def test_any_uniform_sampling_is_taken_and_the_last_pose_held():
    fine = resample(torch.zeros(7, dtype=torch.float64), candidates()[:1])[:, 1:]
    assert torch.allclose(resample(torch.zeros(7, dtype=torch.float64), fine, 0.1)[:, 1:], fine, atol=1e-12)
    short = resample(START, candidates()[:, :3])
    assert torch.equal(short[:, 15:], short[:, 15:16].expand(-1, 26, -1))
    long = torch.cat([candidates(), torch.full((18, 4, 3), 1e3, dtype=torch.float64)], 1)
    assert torch.equal(resample(START, long), resample(START, candidates()))


@pytest.mark.parametrize("size", [1.0, math.pi / 2])
def test_angles_are_unwrapped_as_numpy_does(size):
    """Also at jumps of exactly pi."""
    steps = torch.randint(-9, 10, (50, 9), generator=torch.Generator().manual_seed(1)).double() * size
    assert np.array_equal(unwrapped(steps).numpy(), np.unwrap(steps.numpy(), axis=-1))


@pytest.mark.parametrize("offset", [0.0, 3e5])
@pytest.mark.parametrize("speed", [0.0, 0.15, 8.0])
def test_states_are_those_of_dense_matrices(offset, speed):
    start = START.clone()
    start[:2] += offset
    start[State.VX] = speed
    states = simulate(start, candidates())
    reference = resample(start, candidates())
    for row, found in zip(reference.numpy(), states, strict=True):
        assert difference(found, torch.from_numpy(dense_track(start.numpy(), row))) < 1e-9


def test_states_are_the_official_ones(official_cases):
    """The file rounds to 1e-6."""
    columns = [State.X, State.Y, State.YAW, State.VX, State.AX, State.STEER]
    cases = [case for case in official_cases.values() if "simulated_xyh_v_a_steer" in case.official]
    assert cases
    for case in cases:
        states = simulate(case.start, case.poses)
        expected = states[:, ::5].clone()
        expected[..., columns] = torch.tensor(case.official["simulated_xyh_v_a_steer"], dtype=torch.float64)
        assert difference(states[:, ::5], expected) < 5.1e-7
        for pair in case.official.get("extended_comfort_cases", []):
            expected = torch.tensor(pair["sim_now"], dtype=torch.float64)
            assert difference(states[pair["trajectory"]], expected) < 5.1e-7


def test_rows_are_independent():
    """One by one, permuted, with more leading dimensions, and beside rows that aren't finite."""
    poses = candidates()
    states = simulate(START, poses)
    assert states.shape == (len(poses), 41, 11)
    for row, one in zip(poses, states, strict=True):
        assert difference(simulate(START, row), one) < 1e-10
    assert difference(simulate(START.expand(3, 6, 7), poses.view(3, 6, 8, 3)), states.view(3, 6, 41, 11)) < 1e-10
    order = torch.randperm(len(poses), generator=torch.Generator().manual_seed(2))
    assert difference(simulate(START, poses[order]), states[order]) < 1e-10
    poses[3, 2, 0], poses[5, 7, 2], poses[7] = math.nan, math.inf, 1e200
    broken = simulate(START, poses)
    kept = [row for row in range(len(poses)) if row not in (3, 5, 7)]
    assert difference(broken[kept], states[kept]) < 1e-10
    assert not broken[[3, 5, 7], -1].isfinite().all(-1).any()


def test_box():
    pose = torch.tensor([1.0, 2.0, math.pi / 2], dtype=torch.float64)
    assert torch.allclose(centers(pose), torch.tensor([1.0, 3.461], dtype=torch.float64))
    front, rear, side = 2 + 4.049, 2 - 1.127, 1.1485
    expected = [[1 - side, front], [1 - side, rear], [1 + side, rear], [1 + side, front]]
    assert torch.allclose(corners(pose), torch.tensor(expected, dtype=torch.float64))
    assert pytest.approx(1.461) == REAR_AXLE_TO_CENTER
