"""Answers: waypoints as text, and the scored poses.

Reading never raises and takes linear time, because a policy in training writes the text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from scipy.interpolate import CubicSpline
from torch import Tensor

from driving_scenes.scene import Scene
from lightning_cgrpo.core.errors import UserError

SCORED_SECONDS = 4.0
POSE_INTERVAL = 0.25
"""Seconds between interpolated poses."""
REACH = 500.0
"""Meters; a larger coordinate is malformed, because no car gets there in 5 s."""
LONGEST_GROUP = 80
"""Characters in brackets; a longer text is malformed."""
NO_TRIP = 0.1
"""Meters; a shorter trajectory stands."""
NO_STEP = 0.2
"""Meters between waypoints; from the first shorter step on, interpolation is linear."""
NO_HEADING = 0.1
"""Meters between poses; a shorter step takes its neighbor's heading."""

_GROUP = re.compile(r"\[[^\[\]()]*+\]|\([^\[\]()]*+\)")
_NUMBER = r"([-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)"
_PAIR = re.compile(rf"\s*{_NUMBER}\s*,\s*{_NUMBER}\s*")


@dataclass(frozen=True)
class AnswerFormat:
    """Waypoints ``[x,y]``, in meters in the ego's frame at t = 0.

    Args:
        waypoints: number of waypoints, at least 2.
        interval: seconds between waypoints, and to the first.
    """

    waypoints: int = 4
    interval: float = 1.0

    def __post_init__(self) -> None:
        if self.waypoints < 2:
            raise UserError(f"Expected argument `waypoints` to be at least 2, but got {self.waypoints}.")
        if not (math.isfinite(self.interval) and self.interval * self.waypoints >= POSE_INTERVAL):
            raise UserError(
                f"Expected argument `interval` to lead at least {POSE_INTERVAL} s ahead, but got {self.interval} s "
                f"with {self.waypoints} waypoints."
            )

    @property
    def seconds(self) -> float:
        return self.waypoints * self.interval

    def read(self, text: str) -> Tensor | None:
        """The waypoints ``[waypoints, 2]``, or None if the text is malformed.

        Every group in brackets, ``[..]`` or ``(..)``, must be two numbers, one group per waypoint.

        Example:
            >>> AnswerFormat(waypoints=2).read("I drive [3.0,0.2], (6.6, 1.4).").tolist()
            [[3.0, 0.2], [6.6, 1.4]]
            >>> AnswerFormat(waypoints=2).read("[3.0,0.2], [6.6]") is None
            True
        """
        points: list[list[float]] = []
        for group in _GROUP.finditer(text):
            inside = group.group()[1:-1]
            if len(inside) > LONGEST_GROUP or len(points) == self.waypoints:
                return None
            pair = _PAIR.fullmatch(inside)
            if pair is None:
                return None
            points.append([float(number) for number in pair.groups()])
        if len(points) != self.waypoints:
            return None
        waypoints = torch.tensor(points, dtype=torch.float64)
        is_near = bool((waypoints.abs() <= REACH).all())
        return waypoints if is_near else None

    def trajectories(self, texts: Sequence[str], scenes: Sequence[Scene] | None = None) -> Tensor:
        """The `poses` ``[N, P, 3]`` of texts; NaN where a text is malformed.

        Args:
            scenes: the scene of each text. Unused here, because waypoints are in the ego's frame; for formats of your
                own, such as distances along the lane.
        """
        read = [self.read(text) for text in texts]
        is_readable = torch.tensor([points is not None for points in read], dtype=torch.bool)
        readable = [points for points in read if points is not None]
        waypoints = torch.zeros(0, self.waypoints, 2, dtype=torch.float64)
        if readable:
            waypoints = torch.stack(readable)
        poses = self.poses(waypoints)
        trajectories = poses.new_full((len(read), *poses.shape[1:]), torch.nan)
        trajectories[is_readable] = poses
        return trajectories

    def write(self, poses: Tensor, interval: float) -> str:
        """Describe a trajectory, to a decimeter.

        Args:
            poses: ``[P, 2 or more]`` x, y, … in the ego's frame at t = 0.
            interval: seconds between poses, and to the first.

        Raises:
            UserError: the trajectory ends before the last waypoint.

        Example:
            >>> AnswerFormat(waypoints=2).write(torch.tensor([[2.0, 0.0], [4.0, 0.0], [6.0, -0.01], [8.5, 0.26]]), 0.5)
            '[4.0,0.0], [8.5,0.3]'
        """
        seconds = len(poses) * interval
        if seconds < self.seconds - 1e-6:
            raise UserError(
                f"Expected a trajectory of {self.seconds:g} s, the time of the last of {self.waypoints} waypoints, "
                f"but got one of {seconds:g} s, try fewer waypoints."
            )
        path = np.concatenate([np.zeros((1, 2)), poses[:, :2].detach().cpu().double().numpy()])
        times = np.arange(len(path)) * interval
        waypoint_times = np.arange(1, self.waypoints + 1) * self.interval
        x = np.interp(waypoint_times, times, path[:, 0])
        y = np.interp(waypoint_times, times, path[:, 1])
        return format_points(np.stack([x, y], 1).tolist())

    def poses(self, waypoints: Tensor) -> Tensor:
        """Poses ``[R, P, 3]`` (x, y, yaw) of waypoints ``[R, waypoints, 2]``, every 0.25 s to the last waypoint or 4 s.

        A spline from the origin gives position and yaw, see `resample_paths`. A standing trajectory has poses of zeros.
        """
        knots = torch.cat([waypoints.new_zeros(len(waypoints), 1, 2), waypoints], 1)
        count = int(min(SCORED_SECONDS, self.seconds) / POSE_INTERVAL + 1e-6)
        times = [step * self.interval for step in range(self.waypoints + 1)]
        pose_times = [(step + 1) * POSE_INTERVAL for step in range(count)]
        path = resample_paths(knots, times, pose_times)
        poses = torch.cat([path, _path_headings(path)[..., None]], -1)
        stands = waypoints[:, -1].norm(dim=-1) < NO_TRIP
        return torch.where(stands[:, None, None], 0.0, poses)


def format_points(points: Sequence[Sequence[float]]) -> str:
    """Points as text, to a decimeter.

    Example:
        >>> format_points([[-3.04, -0.01], [0.0, 12.25]])
        '[-3.0,0.0], [0.0,12.2]'
    """
    groups = []
    for point in points:
        numbers = ",".join(map(format_number, point))
        groups.append(f"[{numbers}]")
    return ", ".join(groups)


def format_number(value: float) -> str:
    """One decimal, without -0.0."""
    return f"{round(value, 1) + 0.0:.1f}"


def resample_paths(knots: Tensor, times: Sequence[float], at: Sequence[float]) -> Tensor:
    """Resample R paths to M points, ``[R, M, 2]``, as in the paper authors' ``interp_trajectory``.

    A natural cubic spline leads to the first knot within `NO_STEP` of the next knot. Interpolation is linear from
    there on, or with fewer than three knots.

    Args:
        knots: ``[R, K, 2]``.
        times: K ascending times.
        at: M times between the first and last.
    """
    is_near = knots.diff(dim=1).norm(dim=-1) < NO_STEP  # [R, K - 1]
    last = knots.new_full((len(knots), 1), True, dtype=torch.bool)
    spline_knots = torch.cat([is_near, last], 1).int().argmax(1) + 1  # [R] number of knots of the spline
    points = knots.new_empty(len(knots), len(at), 2)
    for count in spline_knots.unique().tolist():
        rows = spline_knots == count
        points[rows] = _knot_weights(tuple(times), tuple(at), count).to(knots) @ knots[rows]
    return points


@lru_cache(64)
def _knot_weights(times: tuple[float, ...], at: tuple[float, ...], count: int) -> Tensor:
    """``[M, K]`` weight of each knot in each resampled point, with a spline through the first ``count`` knots."""
    asked_times = np.array(at)
    unit = np.eye(len(times))  # of each knot, a path that is 1 there and 0 at the other knots
    weights = np.stack([np.interp(asked_times, times, row) for row in unit], 1)
    if count > 2:
        is_smooth = asked_times <= times[count - 1]
        spline = CubicSpline(times[:count], unit[:count], bc_type="natural")
        weights[is_smooth] = spline(asked_times[is_smooth])
    return torch.from_numpy(weights)


def _path_headings(path: Tensor) -> Tensor:
    """Headings ``[R, M]``; a short step keeps its neighbor's heading."""
    steps = path
    if path.shape[1] > 1:
        (steps,) = torch.gradient(path, dim=1)
    angles = torch.atan2(steps[..., 1], steps[..., 0])
    moves = steps.norm(dim=-1) >= NO_HEADING
    places = torch.arange(path.shape[1], device=path.device).expand_as(moves)  # [R, M]
    # 1. A short step takes the heading of the last longer step before it.
    before = torch.where(moves, places, 0).cummax(1).values
    angles = angles.gather(1, before)
    # 2. As in the authors' code, a stop takes the heading after it.
    after = torch.where(moves, places, path.shape[1] - 1).flip(1).cummin(1).values.flip(1)
    return angles.gather(1, after)
