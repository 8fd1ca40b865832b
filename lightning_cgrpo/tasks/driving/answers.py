"""Answers: waypoints as text, and the poses that are scored. docs/navsim_score.md §14.

Reading is strict and total: every text gives waypoints or None, in time linear in the text, which a policy under
training writes.
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

from lightning_cgrpo.errors import UserError

HORIZON = 4.0
"""Seconds that are scored."""
POSE_INTERVAL = 0.25
"""Seconds from pose to pose of what waypoints are interpolated to."""
REACH = 500.0
"""Meters; a waypoint's coordinate beyond is none. In 5 s nobody gets there."""
LONGEST_GROUP = 80
"""Characters in brackets; more aren't two numbers."""
NO_TRIP = 0.1
"""Meters; who ends nearer to where it began stands."""
NO_STEP = 0.2
"""Meters from waypoint to waypoint; from the first shorter step on, interpolation is linear."""
NO_HEADING = 0.1
"""Meters from pose to pose; a shorter step has the heading of its neighbor."""

_GROUP = re.compile(r"\[[^\[\]()]*+\]|\([^\[\]()]*+\)")
_NUMBER = r"([-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)"
_PAIR = re.compile(rf"\s*{_NUMBER}\s*,\s*{_NUMBER}\s*")


@dataclass(frozen=True)
class AnswerFormat:
    """What an answer is: so many waypoints ``[x,y]``, in meters in the ego's frame at t = 0.

    Args:
        waypoints: how many, at least 2.
        interval: seconds from one to the next, and to the first.

    Raises:
        UserError: there are too few, or no time passes.
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
        """To the last waypoint."""
        return self.waypoints * self.interval

    def read(self, text: str) -> Tensor | None:
        """The waypoints ``[waypoints, 2]`` that a text says, or None: it is malformed.

        Whatever stands in brackets, ``[..]`` or ``(..)``, must be two numbers, and there must be exactly as many such
        groups as waypoints; the text around them says nothing.

        Example:
            >>> AnswerFormat(waypoints=2).read("I drive [3.0,0.2], (6.6, 1.4).").tolist()
            [[3.0, 0.2], [6.6, 1.4]]
            >>> AnswerFormat(waypoints=2).read("[3.0,0.2], [6.6]") is None
            True
        """
        points: list[list[float]] = []
        for group in _GROUP.finditer(text):
            inside = group.group()[1:-1]
            pair = _PAIR.fullmatch(inside) if len(inside) <= LONGEST_GROUP else None
            if pair is None or len(points) == self.waypoints:
                return None
            points.append([float(number) for number in pair.groups()])
        found = torch.tensor(points, dtype=torch.float64)
        # Nor is a number that is too large for a float.
        return found if len(points) == self.waypoints and bool((found.abs() <= REACH).all()) else None

    def write(self, poses: Tensor, interval: float) -> str:
        """The answer that describes a trajectory, to a decimeter.

        Args:
            poses: ``[P, 2 or more]`` x, y, … in the ego's frame at t = 0, at ``interval``, 2 ``interval``, …
            interval: seconds between poses.

        Raises:
            UserError: the trajectory ends before the last waypoint.

        Example:
            >>> AnswerFormat(waypoints=2).write(torch.tensor([[2.0, 0.0], [4.0, 0.0], [6.0, -0.01], [8.5, 0.26]]), 0.5)
            '[4.0,0.0], [8.5,0.3]'
        """
        known = len(poses) * interval
        if known < self.seconds - 1e-6:
            raise UserError(
                f"Expected a trajectory of {self.seconds:g} s, the time of the last of {self.waypoints} waypoints, "
                f"but got one of {known:g} s, try fewer waypoints."
            )
        path = np.concatenate([np.zeros((1, 2)), poses[:, :2].detach().cpu().double().numpy()])
        times, at = np.arange(len(path)) * interval, np.arange(1, self.waypoints + 1) * self.interval
        return written(np.stack([np.interp(at, times, path[:, axis]) for axis in (0, 1)], 1).tolist())

    def poses(self, waypoints: Tensor) -> Tensor:
        """What waypoints mean: poses every `POSE_INTERVAL` up to 4 s, or to the last waypoint if that is earlier.

        A cubic spline leads from the origin through the waypoints, as `resampled` says; a pose looks to where the path
        around it leads. Who stands has poses of zeros.

        Args:
            waypoints: ``[R, waypoints, 2]``.

        Returns:
            ``[R, P, 3]`` x, y, yaw.
        """
        knots = torch.cat([waypoints.new_zeros(len(waypoints), 1, 2), waypoints], 1)
        count = int(min(HORIZON, self.seconds) / POSE_INTERVAL + 1e-6)
        times = [step * self.interval for step in range(self.waypoints + 1)]
        path = resampled(knots, times, [(step + 1) * POSE_INTERVAL for step in range(count)])
        poses = torch.cat([path, _headings(path)[..., None]], -1)
        stands = waypoints[:, -1].norm(dim=-1) < NO_TRIP
        return torch.where(stands[:, None, None], 0.0, poses)


def written(points: Sequence[Sequence[float]]) -> str:
    """Points as text, to a decimeter.

    Example:
        >>> written([[-3.04, -0.01], [0.0, 12.25]])
        '[-3.0,0.0], [0.0,12.2]'
    """
    return ", ".join(f"[{','.join(number(value) for value in point)}]" for point in points)


def number(value: float) -> str:
    """With one decimal, and without -0.0."""
    return f"{round(value, 1) + 0.0:.1f}"


def resampled(knots: Tensor, times: Sequence[float], at: Sequence[float]) -> Tensor:
    """Where paths are at other times, as the paper's authors interpolate (their ``interp_trajectory``).

    A natural cubic spline leads to the first knot that has the next one within `NO_STEP`; from there on, or where that
    is one of the first two, the way is straight from knot to knot.

    Args:
        knots: ``[R, K, 2]``.
        times: K ascending.
        at: M times between the first and the last.

    Returns:
        ``[R, M, 2]``.
    """
    near = knots.diff(dim=1).norm(dim=-1) < NO_STEP
    last = knots.new_full((len(knots), 1), True, dtype=torch.bool)
    smooth = torch.cat([near, last], 1).int().argmax(1) + 1  # knots of the spline
    found = knots.new_empty(len(knots), len(at), 2)
    for count in smooth.unique().tolist():
        rows = smooth == count
        found[rows] = _weights(tuple(times), tuple(at), count).to(knots) @ knots[rows]
    return found


@lru_cache(64)
def _weights(times: tuple[float, ...], at: tuple[float, ...], count: int) -> Tensor:
    """``[M, K]``, how much each knot counts at each time, if a spline leads through the first ``count`` knots."""
    asked, unit = np.array(at), np.eye(len(times))
    found = np.stack([np.interp(asked, times, row) for row in unit], 1)
    if count > 2:
        smooth = asked <= times[count - 1]
        found[smooth] = CubicSpline(times[:count], unit[:count], bc_type="natural")(asked[smooth])
    return torch.from_numpy(found)


def _headings(path: Tensor) -> Tensor:
    """``[R, M]`` of paths ``[R, M, 2]``: where it moves too little, as before, or at the beginning as afterwards."""
    (steps,) = torch.gradient(path, dim=1) if path.shape[1] > 1 else (path,)
    angles = torch.atan2(steps[..., 1], steps[..., 0])
    moves = steps.norm(dim=-1) >= NO_HEADING
    rows = torch.arange(path.shape[1], device=path.device).expand_as(moves)
    before = torch.where(moves, rows, 0).cummax(1).values
    angles = angles.gather(1, before)
    # As in theirs, a stop on the way has the heading from after it.
    after = torch.where(moves, rows, path.shape[1] - 1).flip(1).cummin(1).values.flip(1)
    return angles.gather(1, after)
