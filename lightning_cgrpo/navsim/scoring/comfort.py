"""Comfort: of a simulated drive after the ego's history, and of two drives that were planned one after another.

docs/navsim_score.md §7; officially pdm_planner/scoring/pdm_comfort_metrics.py. Savitzky-Golay filters over all states
are linear, so each is one matrix.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from scipy.signal import savgol_filter
from torch import Tensor

from lightning_cgrpo.navsim.simulation.interpolation import MICROSECONDS, interpolated, unwrapped
from lightning_cgrpo.navsim.simulation.timing import DT
from lightning_cgrpo.scenes.scene import EgoHistory
from lightning_cgrpo.scenes.vehicle import REAR_AXLE_TO_CENTER, State

CHECKS = ("lon_acceleration", "lat_acceleration", "jerk", "lon_jerk", "yaw_acceleration", "yaw_rate")
"""Columns of the checks, in the official order."""
LOW = (-4.05, -4.89, -8.37, -4.13, -1.93, -0.95)
"""Bounds of the checks, which values must not reach, in m/s^2, m/s^3, rad/s^2, rad/s."""
HIGH = (2.40, 4.89, 8.37, 4.13, 1.93, 0.95)
LARGEST_DIFFERENCES = (0.7, 0.5, 0.1, 0.1)
"""Of two frames, root mean square of acceleration, jerk, yaw rate, yaw acceleration; values may reach these."""
LONGEST_INTERVAL = 0.55
"""Seconds between two frames, which it must not reach."""
LONGEST_HISTORY = 1.5
"""Seconds before now that count."""
DECIMALS = 8
"""To which filtered values are officially rounded."""


class Signals(NamedTuple):
    """What comfort is judged by, each ``[..., T]`` every 0.1 s."""

    yaw: Tensor
    lon: Tensor
    """Longitudinal acceleration of the center, with the official sign: turning adds to it."""
    lat: Tensor
    magnitude: Tensor
    """Of the rear axle's acceleration."""


class HistoryComfort:
    """Whether simulated drives, each after its scene's history, stay within the bounds.

    The last 1.5 s of the history are sampled at 10 Hz up to 0.2 s before now (officially the last sample is dropped)
    and put before the simulated states as if that were contiguous; they don't turn, as rates of yaw aren't logged.

    Args:
        histories: of the S scenes. One of at most 0.1 s is none: then nothing is checked.
        dtype: of the states to come.
        device: of the states to come.
        gapless: sample up to 0.1 s before now.
    """

    def __init__(
        self,
        histories: Sequence[EgoHistory],
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
        *,
        gapless: bool = False,
    ) -> None:
        pasts = [_sampled(history, gapless) for history in histories]
        lengths = torch.tensor([len(past) for past in pasts], dtype=torch.int64)
        self.lengths = lengths.to(device)
        self.pasts: dict[int, Tensor] = {}  # by length, [S, length, 3]
        for length in sorted(set(lengths.tolist()) - {0}):
            rows = [past if len(past) == length else past.new_zeros(length, 3) for past in pasts]
            self.pasts[length] = torch.stack(rows).to(device, dtype)
        self.uniform = len(set(lengths.tolist())) == 1

    def __call__(self, states: Tensor, scene: Tensor) -> Tensor:
        """The six checks.

        Args:
            states: ``[R, T, 11]`` simulated, from now on.
            scene: ``[R]`` int64, row -> scene.

        Returns:
            ``[R, 6]`` bool, `CHECKS`; a drive is comfortable if all are true. One is false where what it looks at
            isn't finite.
        """
        passed = torch.ones(len(states), len(CHECKS), dtype=torch.bool, device=states.device)
        for length, past in self.pasts.items():
            if self.uniform:
                return checks(_after(past[scene], states))
            rows = (self.lengths[scene] == length).nonzero()[:, 0]
            passed[rows] = checks(_after(past[scene[rows]], states[rows]))
        return passed


def checks(signals: Signals) -> Tensor:
    """``[..., 6]`` bool, `CHECKS`, of T states."""
    lon = _filtered(signals.lon, 8, 2)
    values = [
        lon,
        _filtered(signals.lat, 8, 2),
        _filtered(_filtered(signals.magnitude, 8, 2), 15, 2, 1),
        _filtered(lon, 15, 2, 1),
        _filtered(signals.yaw, 5, 3, 2),
        _filtered(signals.yaw, 5, 2, 1),
    ]
    within = [(value > low) & (value < high) for value, low, high in zip(values, LOW, HIGH, strict=True)]
    return torch.stack(within, -2).all(-1)


def extended_comfort(now: Tensor, previous: Tensor, interval: float = 0.5) -> Tensor:
    """Whether two drives agree where they overlap: does the ego stay with its plans?

    Args:
        now: ``[..., T, 11]`` states of the drive that was planned now.
        previous: ``[..., T, 11]`` of the one that was planned ``interval`` earlier.
        interval: seconds.

    Returns:
        ``[...]`` bool. It holds for both drives.

    Raises:
        ValueError: the interval isn't in (0.05, 0.55), within which frames are officially compared.
    """
    shift = round(interval / DT) if math.isfinite(interval) else 0
    if shift < 1 or interval >= LONGEST_INTERVAL:
        raise ValueError(f"Expected frames more than 0.05 and less than {LONGEST_INTERVAL} s apart, got {interval}.")
    ours, theirs = _features(now[..., :-shift, :]), _features(previous[..., shift:, :])
    differences = [
        (one - other).square().mean(-1).sqrt() <= largest
        for one, other, largest in zip(ours, theirs, LARGEST_DIFFERENCES, strict=True)
    ]
    return torch.stack(differences, -1).all(-1)


def _features(states: Tensor) -> tuple[Tensor, ...]:
    signals = _signals(states)
    acceleration = _filtered(signals.magnitude, 8, 2)
    jerk = _filtered(acceleration, 15, 2, 1)
    return acceleration, jerk, _filtered(signals.yaw, 5, 2, 1), _filtered(signals.yaw, 5, 2, 2)


def _signals(states: Tensor) -> Signals:
    ax, ay = states[..., State.AX], states[..., State.AY]
    turning = states[..., State.YAW_RATE].square() + states[..., State.YAW_ACC]
    yaw = _without_jumps(states[..., State.YAW])
    return Signals(yaw, ax + REAR_AXLE_TO_CENTER * turning, ay, torch.hypot(ax, ay))


def _after(past: Tensor, states: Tensor) -> Signals:
    """The signals of a history ``[R, N, 3]`` (yaw, ax, ay) and of the states that follow."""
    later = _signals(states)
    yaw, ax, ay = past.unbind(-1)
    return Signals(
        _without_jumps(torch.cat([yaw, states[..., State.YAW]], -1)),
        torch.cat([ax, later.lon], -1),
        torch.cat([ay, later.lat], -1),
        torch.cat([torch.hypot(ax, ay), later.magnitude], -1),
    )


def _sampled(history: EgoHistory, gapless: bool) -> Tensor:
    """``[N, 3]`` yaw, ax, ay."""
    times = [round(time * MICROSECONDS) for time in history.times.tolist()]
    begin, step = max(times[0], times[-1] - round(LONGEST_HISTORY * MICROSECONDS)), round(DT * MICROSECONDS)
    at = list(range(times[-1] - step, begin - 1, -step))[::-1] if gapless else list(range(begin, times[-1], step))[:-1]
    poses = torch.cat([history.poses[:, :2], unwrapped(history.poses[:, 2])[:, None], history.accelerations], 1)
    return interpolated(times, poses, at)[:, 2:] if at else poses[:0, 2:]


def _without_jumps(yaw: Tensor) -> Tensor:
    """Neighbors differ by at most pi."""
    turns = (yaw.diff(dim=-1) / (2 * math.pi)).round().cumsum(-1)
    return torch.cat([yaw[..., :1], yaw[..., 1:] - 2 * math.pi * turns], -1)


def _filtered(values: Tensor, window: int, order: int, derivative: int = 0) -> Tensor:
    matrix = _savitzky_golay(values.shape[-1], window, order, derivative, values.dtype, values.device)
    return (values @ matrix).round(decimals=DECIMALS)


@lru_cache(maxsize=64)
def _savitzky_golay(
    count: int, window: int, order: int, derivative: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """``[T, T]`` that filters T values from the right; a window longer than these is cut to them."""
    responses = savgol_filter(np.eye(count), min(window, count), order, derivative, delta=DT, axis=-1)
    return torch.from_numpy(responses).to(device, dtype)
