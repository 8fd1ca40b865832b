"""Comfort after the history (HC) and between plans (EC) (docs/navsim_score.md §7)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from scipy.signal import savgol_filter
from torch import Tensor

from driving_scenes.scene import EgoHistory
from driving_scenes.vehicle import REAR_AXLE_TO_CENTER, State
from navsim_score.official_constants import (
    COMFORT_BOUNDS,
    EXTENDED_COMFORT_BOUNDS,
    FILTER_DECIMALS,
    FRAME_STEPS,
    HISTORY_DURATION,
)
from navsim_score.simulation.interpolation import MICROSECONDS, interpolated, unwrapped
from navsim_score.simulation.timing import DT

CHECKS = tuple(COMFORT_BOUNDS)
"""Checks of HC, in the official order."""


class ComfortSignals(NamedTuple):
    """Unwrapped yaw and accelerations ``[..., T]`` every 0.1 s.

    Simulated longitudinal acceleration is at the center; other accelerations are at the rear axle.
    """

    yaw: Tensor
    lon: Tensor
    lat: Tensor
    magnitude: Tensor


@dataclass(frozen=True, eq=False)
class HistoryComfort:
    """The six checks of HC on simulated drives.

    The history, at 10 Hz from -1.5 to -0.2 s, precedes the simulated states as if contiguous. Its accelerations stay
    at the rear axle, because logs have no yaw rates.
    """

    lengths: Tensor  # [S] int64, steps of the histories
    pasts: dict[int, Tensor]  # by length, [S, length, 3]

    @classmethod
    def of(cls, histories: Sequence[EgoHistory], device: torch.device | str = "cpu") -> HistoryComfort:
        """The checks after S scenes' histories; with at most 0.1 s of history, all checks pass."""
        return cls.of_pasts([_sampled_history(history) for history in histories], device)

    @classmethod
    def of_pasts(cls, sampled: Sequence[Tensor], device: torch.device | str = "cpu") -> HistoryComfort:
        """The checks after sampled histories ``[N, 3]``: yaw, ax, ay every 0.1 s."""
        lengths = torch.tensor([len(past) for past in sampled], dtype=torch.int64)
        pasts = {}
        for length in sorted(set(lengths.tolist()) - {0}):
            rows = sampled[0].new_zeros(len(sampled), length, 3)
            for row, past in enumerate(sampled):
                if len(past) == length:
                    rows[row] = past
            pasts[length] = rows.to(device)
        return cls(lengths.to(device), pasts)

    def past(self, scene: int) -> Tensor:
        """``[N, 3]`` yaw, ax, ay of a scene's history at 10 Hz; N is 0 without a history."""
        length = int(self.lengths[scene])
        if not length:
            return torch.zeros(0, 3, dtype=torch.float64)
        return self.pasts[length][scene]

    def __call__(self, states: Tensor, scene: Tensor) -> Tensor:
        """``[R, 6]`` bool: states ``[R, T, 11]`` in scenes ``[R]`` pass each of `CHECKS`; False if not finite."""
        passed = torch.ones(len(states), len(CHECKS), dtype=torch.bool, device=states.device)
        for length, past in self.pasts.items():
            rows = (self.lengths[scene] == length).nonzero()[:, 0]
            passed[rows] = checks(_signals_after(past[scene[rows]], states[rows]))
        return passed


def checks(signals: ComfortSignals, window: int = 8, jerk_window: int = 15) -> Tensor:
    """``[..., 6]`` bool: each of `CHECKS` passes; windows in steps of the filters of accelerations and of jerks."""
    values = {
        "lon_acceleration": _filter_signal(signals.lon, window, 2),
        "lat_acceleration": _filter_signal(signals.lat, window, 2),
        "jerk": _filter_signal(_filter_signal(signals.magnitude, 8, 2), jerk_window, 2, 1),
        "lon_jerk": _filter_signal(_filter_signal(signals.lon, 8, 2), jerk_window, 2, 1),
        "yaw_acceleration": _filter_signal(signals.yaw, 5, 3, 2),
        "yaw_rate": _filter_signal(signals.yaw, 5, 2, 1),
    }
    within = []
    for name, (low, high) in COMFORT_BOUNDS.items():
        within.append((values[name] > low) & (values[name] < high))
    return torch.stack(within, -2).all(-1)


def plain_comfort(states: Tensor) -> Tensor:
    """``[R, 6]`` bool: states ``[R, T, 11]`` without a past pass each of `CHECKS`, as in NAVSIM 1.1.

    Accelerations are at the rear axle. The filters of accelerations and jerks span all T states.
    """
    signals = _drive_signals(states)._replace(lon=states[..., State.AX])
    return checks(signals, states.shape[-2], states.shape[-2])


def extended_comfort(now: Tensor, previous: Tensor) -> Tensor:
    """EC ``[...]`` bool of two drives: True where their overlap agrees. The value counts for both drives.

    Args:
        now: ``[..., T, 11]`` states.
        previous: ``[..., T, 11]`` states, planned half a second earlier.
    """
    features = _comfort_features(now[..., :-FRAME_STEPS, :])
    previous_features = _comfort_features(previous[..., FRAME_STEPS:, :])
    agrees = []
    for feature, before, largest in zip(features, previous_features, EXTENDED_COMFORT_BOUNDS, strict=True):
        root_mean_square = (feature - before).square().mean(-1).sqrt()
        agrees.append(root_mean_square <= largest)
    return torch.stack(agrees, -1).all(-1)


def paired_comfort(now: Tensor, previous: Tensor) -> Tensor:
    """EC ``[...]`` of drives of two frames, NaN where either is malformed, because a failed drive makes no pair.

    Args:
        now: ``[..., T, 11]`` states, NaN where malformed.
        previous: ``[..., T, 11]`` states, planned half a second earlier, NaN where malformed.
    """
    finite = now.isfinite().all((-1, -2)) & previous.isfinite().all((-1, -2))
    return torch.where(finite, extended_comfort(now, previous).to(now), torch.nan)


def _comfort_features(states: Tensor) -> tuple[Tensor, ...]:
    signals = _drive_signals(states)
    acceleration = _filter_signal(signals.magnitude, 8, 2)
    jerk = _filter_signal(acceleration, 15, 2, 1)
    yaw_rate = _filter_signal(signals.yaw, 5, 2, 1)
    yaw_acceleration = _filter_signal(signals.yaw, 5, 2, 2)
    return acceleration, jerk, yaw_rate, yaw_acceleration


def _drive_signals(states: Tensor) -> ComfortSignals:
    ax = states[..., State.AX]
    ay = states[..., State.AY]
    turning = states[..., State.YAW_RATE].square() + states[..., State.YAW_ACC]
    yaw = _without_jumps(states[..., State.YAW])
    # With the official sign: turning adds to longitudinal acceleration.
    return ComfortSignals(yaw, ax + REAR_AXLE_TO_CENTER * turning, ay, torch.hypot(ax, ay))


def _signals_after(past: Tensor, states: Tensor) -> ComfortSignals:
    """Signals of a history ``[R, N, 3]`` (yaw, ax, ay) followed by states."""
    later = _drive_signals(states)
    yaw, ax, ay = past.unbind(-1)
    return ComfortSignals(
        _without_jumps(torch.cat([yaw, states[..., State.YAW]], -1)),
        torch.cat([ax, later.lon], -1),
        torch.cat([ay, later.lat], -1),
        torch.cat([torch.hypot(ax, ay), later.magnitude], -1),
    )


def _sampled_history(history: EgoHistory) -> Tensor:
    """``[N, 3]`` yaw, ax, ay of the history at 10 Hz; officially the sample before t = 0 is missing."""
    times = [round(time * MICROSECONDS) for time in history.times.tolist()]
    begin = max(times[0], times[-1] - round(HISTORY_DURATION * MICROSECONDS))
    step = round(DT * MICROSECONDS)
    at = list(range(begin, times[-1], step))[:-1]
    poses = torch.cat([history.poses[:, :2], unwrapped(history.poses[:, 2])[:, None], history.accelerations], 1)
    if not at:
        return poses[:0, 2:]
    return interpolated(times, poses, at)[:, 2:]


def _without_jumps(yaw: Tensor) -> Tensor:
    """Unwrap: neighbors differ by at most pi."""
    turns = (yaw.diff(dim=-1) / (2 * math.pi)).round().cumsum(-1)
    return torch.cat([yaw[..., :1], yaw[..., 1:] - 2 * math.pi * turns], -1)


def _filter_signal(values: Tensor, window: int, order: int, derivative: int = 0) -> Tensor:
    matrix = _savitzky_golay(values.shape[-1], window, order, derivative, values.device)
    return (values @ matrix).round(decimals=FILTER_DECIMALS)


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # training uses it, too
def _savitzky_golay(count: int, window: int, order: int, derivative: int, device: torch.device) -> Tensor:
    """``[count, count]`` matrix of the linear filter; a larger window is cut to ``count``."""
    responses = savgol_filter(np.eye(count), min(window, count), order, derivative, delta=DT, axis=-1)
    return torch.from_numpy(responses).to(device)
