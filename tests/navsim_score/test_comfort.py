"""Comfort against scipy's filter, one row at a time, at its bounds, and against the official values."""

import math

import numpy as np
import pytest
import torch
from scipy.signal import savgol_filter

from driving_scenes.scene import EgoHistory
from driving_scenes.vehicle import State
from navsim_score.scoring.comfort import CHECKS, HistoryComfort, extended_comfort, plain_comfort
from navsim_score.simulation.simulate import simulate

FIRST = torch.zeros(1, dtype=torch.int64)


def history(times=(-1.5, -1.0, -0.5, 0.0), yaw=None, acceleration=(0.0, 0.0)):
    """Straight on, or of these yaws."""
    times = torch.tensor(times, dtype=torch.float64)
    yaw = torch.zeros_like(times) if yaw is None else torch.tensor(yaw, dtype=torch.float64)
    poses = torch.stack([8.0 * times, torch.zeros_like(times), yaw], -1)
    accelerations = torch.tensor(acceleration, dtype=torch.float64).expand(len(times), 2)
    velocities = torch.tensor([8.0, 0.0], dtype=torch.float64).expand(len(times), 2)
    return EgoHistory(times, poses, velocities, accelerations)


def drive(acceleration=0.0, yaw_rate=0.0):
    """Constant acceleration and yaw rate."""
    states = torch.zeros(1, 41, 11, dtype=torch.float64)
    states[..., State.AX] = acceleration
    states[..., State.YAW] = yaw_rate * 0.1 * torch.arange(41)
    return states


def noisy(rows, seed=0, size=1.0, push=1.0):
    """States with something in every column."""
    generator = torch.Generator().manual_seed(seed)
    steps = torch.randn(rows, 41, 11, generator=generator, dtype=torch.float64).cumsum(1) * 0.2
    scale = torch.rand(rows, 1, 1, generator=generator, dtype=torch.float64) * size
    states = steps * scale
    states[..., [State.AX, State.AY]] *= push
    states[..., State.YAW] = torch.remainder(states[..., State.YAW] + 3 + math.pi, 2 * math.pi) - math.pi
    return states


def filtered(values, window, order, derivative=0):
    return np.round(savgol_filter(values, window, order, deriv=derivative, delta=0.1), 8)


def scipy_signals(states, past=None):
    """Longitudinal and lateral acceleration of the center, magnitude of the rear axle's, yaw; each [T]."""
    states = states.numpy()
    if past is not None:
        at = np.arange(-1.5, -0.15, 0.1)
        rows = np.zeros((len(at), 11))
        rows[:, State.YAW] = np.interp(at, past.times, np.unwrap(past.poses[:, 2]))
        for column, name in ((0, State.AX), (1, State.AY)):
            rows[:, name] = np.interp(at, past.times, past.accelerations[:, column])
        assert len(rows) == 14
        states = np.concatenate([rows, states])
    lon = states[:, State.AX] + 1.461 * (states[:, State.YAW_RATE] ** 2 + states[:, State.YAW_ACC])
    magnitude = np.hypot(states[:, State.AX], states[:, State.AY])
    return lon, states[:, State.AY], magnitude, np.unwrap(states[:, State.YAW])


def scipy_checks(states, past):
    """Without a past, those of NAVSIM 1.1: of the rear axle, with two windows as long as the drive."""
    lon, lat, magnitude, yaw = scipy_signals(states, past)
    window, jerk_window = 8, 15
    if past is None:
        lon, window, jerk_window = states[:, State.AX].numpy(), len(states), len(states)
    values = [
        (filtered(lon, window, 2), -4.05, 2.40),
        (filtered(lat, window, 2), -4.89, 4.89),
        (filtered(filtered(magnitude, 8, 2), jerk_window, 2, 1), -8.37, 8.37),
        (filtered(filtered(lon, 8, 2), jerk_window, 2, 1), -4.13, 4.13),
        (filtered(yaw, 5, 3, 2), -1.93, 1.93),
        (filtered(yaw, 5, 2, 1), -0.95, 0.95),
    ]
    return [bool(((value > low) & (value < high)).all()) for value, low, high in values]


def test_checks_are_those_of_scipy():
    past = history(yaw=(-3.1, 3.1, 3.05, 3.0), acceleration=(0.4, 0.2))
    states = noisy(100, push=8.0)
    with_past = HistoryComfort.of([past])(states, torch.zeros(100, dtype=torch.int64))
    for found, before in ((with_past, past), (plain_comfort(states), None)):
        assert found.tolist() == [scipy_checks(row, before) for row in states]
        assert found.any(0).all() and not found.all(0).any()


@pytest.mark.parametrize(
    ("check", "within", "beyond", "before"),
    [
        ("lon_acceleration", drive(2.399), drive(2.401), (2.39, 0)),
        ("lon_acceleration", drive(-4.049), drive(-4.051), (-4.04, 0)),
        ("yaw_rate", drive(yaw_rate=0.949), drive(yaw_rate=0.951), (0, 0)),
        ("yaw_rate", drive(yaw_rate=-0.949), drive(yaw_rate=-0.951), (0, 0)),
    ],
)
def test_bounds(check, within, beyond, before):
    """The history does what the drive does, so that nothing but the check changes; its turn begins with the drive."""
    comfort = HistoryComfort.of([history(acceleration=before)])
    column = CHECKS.index(check)
    assert comfort(within, FIRST)[0, column] and not comfort(beyond, FIRST)[0, column]


def test_the_bound_itself_is_beyond():
    """Values are rounded to 8 decimals before they are compared."""
    for below, within in ((4e-9, False), (6e-9, True)):
        past = history(acceleration=(2.4 - below, 0.0))
        assert bool(HistoryComfort.of([past])(drive(2.4 - below), FIRST)[0, 0]) is within


def test_only_the_last_second_and_a_half_counts():
    rough, since = [(0.0, 9.0), (9.0, -9.0)], [(0.1, 0.0), (0.2, 0.1), (0.0, 0.2), (0.1, 0.0)]
    states, scene = noisy(60, seed=5, size=0.5, push=4.0), torch.zeros(60, dtype=torch.int64)
    expected = HistoryComfort.of([history(acceleration=since)])(states, scene)
    assert expected[:, :4].any(0).all() and not expected.all()
    past = history((-2.0, -1.6, -1.5, -1.0, -0.5, 0.0), (9.0, -9.0, 0.0, 0.0, 0.0, 0.0), rough + since)
    assert torch.equal(HistoryComfort.of([past])(states, scene), expected)
    late = history((-1.500017, -1.0, -0.5, 0.0), acceleration=since)  # as logs have it
    assert len(HistoryComfort.of([late]).pasts[14]) == 1


def test_scenes_with_different_histories_in_one_batch():
    histories = [
        history(yaw=(0.0, 0.05, 0.1, 0.15)),
        history((-1.0, -0.5, 0.0), acceleration=(2.0, 0.0)),
        history((0.0,)),  # none: nothing is checked
        history(acceleration=(0.0, 4.0)),
    ]
    states, scene = noisy(40, seed=1, size=0.6), torch.arange(40) % 4
    found = HistoryComfort.of(histories)(states, scene)
    for row, one in enumerate(found):
        alone = HistoryComfort.of([histories[row % 4]])(states[row : row + 1], FIRST)
        assert torch.equal(alone[0], one)
    assert found[scene == 2].all() and not found.all()


EXTENDED_BOUNDS = (0.7, 0.5, 0.1, 0.1)


def scipy_gaps(now, previous):
    """Of acceleration, jerk, yaw rate and yaw acceleration."""
    features = []
    for states in (now[:-5], previous[5:]):
        _, _, magnitude, yaw = scipy_signals(states)
        acceleration = filtered(magnitude, 8, 2)
        jerk, turns = filtered(acceleration, 15, 2, 1), [filtered(yaw, 5, 2, times) for times in (1, 2)]
        features.append([acceleration, jerk, *turns])
    return [np.sqrt(np.mean((one - other) ** 2)) for one, other in zip(*features, strict=True)]


def scipy_extended(now, previous):
    return all(gap <= bound for gap, bound in zip(scipy_gaps(now, previous), EXTENDED_BOUNDS, strict=True))


def test_extended_comfort_is_that_of_scipy():
    now = noisy(100, seed=3, size=0.3)
    previous = now.roll(5, 1) + 0.3 * noisy(100, seed=4, size=0.3)
    found = extended_comfort(now, previous)
    assert found.tolist() == [scipy_extended(*rows) for rows in zip(now, previous, strict=True)]
    assert found.any() and not found.all()


TIME = 0.1 * torch.arange(41, dtype=torch.float64)


@pytest.mark.parametrize(
    ("column", "wave", "feature"),
    [
        (State.AX, torch.ones(41), 0),
        (State.AX, (-1.0) ** torch.arange(41), 1),
        (State.YAW, TIME, 2),
        (State.YAW, (TIME * 2 * math.pi / 0.7).sin(), 3),
    ],
)
def test_bounds_of_extended_comfort(column, wave, feature):
    """One feature is at its bound, and the others are within theirs."""
    previous = drive(10.0)[0]

    def deviating(size):
        now = previous.clone()
        now[:, column] += size * wave
        return now

    size = EXTENDED_BOUNDS[feature] / scipy_gaps(deviating(1e-2), previous)[feature] * 1e-2
    for share, agrees in ((0.99, True), (1.01, False)):
        gaps = scipy_gaps(deviating(share * size), previous)
        assert [gap > bound for gap, bound in zip(gaps, EXTENDED_BOUNDS, strict=True)].count(True) == (not agrees), gaps
        assert bool(extended_comfort(deviating(share * size), previous)) is agrees


def test_checks_are_the_official_ones(official_cases):
    for case in official_cases.values():
        states = simulate(case.start, case.poses)
        found = HistoryComfort.of([case.scene.ego])(states, torch.zeros(len(states), dtype=torch.int64))
        for rows in case.official["official"].values():
            assert rows and found.tolist() == [row["comfort"] for row in rows]
            assert found.all(-1).double().tolist() == [row["history_comfort"] for row in rows]
        for pair in case.official.get("extended_comfort_cases", []):
            now, previous = (torch.tensor(pair[name], dtype=torch.float64) for name in ("sim_now", "sim_prev"))
            assert extended_comfort(now, previous).item() == pair["extended_comfort"]
