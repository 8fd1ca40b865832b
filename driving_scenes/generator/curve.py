"""Curves with directions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
STEP = 1.0
"""Meters between points, as in nuPlan's maps."""


@dataclass(frozen=True, eq=False)
class Curve:
    """N points with directions."""

    xy: Array  # [N, 2]
    yaw: Array  # [N] unwrapped

    @cached_property
    def s(self) -> Array:
        x, y = self.xy.T
        distances: Array = np.zeros(len(x))
        np.cumsum(np.hypot(x[1:] - x[:-1], y[1:] - y[:-1]), out=distances[1:])
        return distances

    @cached_property
    def curvature(self) -> Array:
        """``[N]`` 1/m, positive to the left."""
        return np.gradient(self.yaw, self.s)

    @classmethod
    def curved(cls, curvature: Array, start: Sequence[float] = (0.0, 0.0, 0.0)) -> Curve:
        """From a pose, one `STEP` per curvature ``[N - 1]`` in 1/m, positive to the left."""
        yaw = start[2] + np.append(0.0, (curvature * STEP).cumsum())
        middle = (yaw[1:] + yaw[:-1]) / 2
        chord = STEP * np.sinc(curvature * STEP / 2 / np.pi)
        steps = np.stack([chord * np.cos(middle), chord * np.sin(middle)], 1)
        xy = np.concatenate([np.zeros((1, 2)), steps.cumsum(0)]) + start[:2]
        return cls(xy, yaw)

    @classmethod
    def between(cls, start: Sequence[float], end: Sequence[float]) -> Curve:
        """A cubic Bézier curve between two poses, nearly an arc, straighter at its ends."""
        first = np.array(start[:2])
        last = np.array(end[:2])
        turn = (end[2] - start[2] + np.pi) % (2 * np.pi) - np.pi
        chord = float(np.hypot(*(last - first)))
        # An arc's handles have 2/3, which is too sudden for cars.
        share = 0.4
        if abs(turn) > 1e-3:
            share = 0.8 * np.tan(turn / 4) / np.sin(turn / 2)
        handle = chord * share
        controls = np.stack(
            [
                first,
                first + handle * np.array([np.cos(start[2]), np.sin(start[2])]),
                last - handle * np.array([np.cos(end[2]), np.sin(end[2])]),
                last,
            ]
        )
        # Bernstein polynomials of the points, and of their derivative.
        t = np.linspace(0, 1, max(int(chord / STEP), 8) + 1)[:, None]
        u = 1 - t
        xy = np.concatenate([u**3, 3 * u * u * t, 3 * u * t * t, t**3], 1) @ controls
        legs = np.diff(controls, axis=0)
        slope = np.concatenate([u * u, 2 * u * t, t * t], 1) @ legs
        turned = np.arctan2(slope[:, 1], slope[:, 0]) - start[2]
        return cls(xy, start[2] + np.unwrap((turned + np.pi) % (2 * np.pi) - np.pi))

    @property
    def length(self) -> float:
        return float(self.s[-1])

    @property
    def start(self) -> tuple[float, float, float]:
        return float(self.xy[0, 0]), float(self.xy[0, 1]), float(self.yaw[0])

    @property
    def end(self) -> tuple[float, float, float]:
        return float(self.xy[-1, 0]), float(self.xy[-1, 1]), float(self.yaw[-1])

    def offset(self, left: float | Array) -> Curve:
        """The parallel curve, `left` meters (or ``[N]``) to the left; negative: to the right."""
        xy = np.empty_like(self.xy)
        xy[:, 0] = self.xy[:, 0] - left * np.sin(self.yaw)
        xy[:, 1] = self.xy[:, 1] + left * np.cos(self.yaw)
        return Curve(xy, self.yaw)

    def reversed(self) -> Curve:
        return Curve(self.xy[::-1], self.yaw[::-1] + np.pi)

    def part(self, start: float, end: float) -> Curve:
        first = int(np.searchsorted(self.s, start - 1e-9))
        after_last = int(np.searchsorted(self.s, end + 1e-9))
        kept = slice(first, after_last)
        return Curve(self.xy[kept], self.yaw[kept])

    @classmethod
    def joined(cls, paths: Sequence[Curve]) -> Curve:
        """Curves one after another; neighbors share a point."""
        xy = [paths[0].xy]
        yaw = [paths[0].yaw]
        for path in paths[1:]:
            xy.append(path.xy[1:])
            yaw.append(path.yaw[1:])
        return cls(np.concatenate(xy), np.unwrap(np.concatenate(yaw)))

    def at(self, s: ArrayLike, left: float | Array = 0.0) -> Array:
        """Poses ``[..., 3]`` at distances `s`, `left` meters to the left; straight beyond the ends."""
        wanted = np.asarray(s, dtype=np.float64)
        inside = wanted.clip(0, self.length)
        yaw = np.interp(inside, self.s, self.yaw)
        ahead = wanted - inside
        cos = np.cos(yaw)
        sin = np.sin(yaw)
        poses = np.empty((*wanted.shape, 3))
        poses[..., 0] = np.interp(inside, self.s, self.xy[:, 0]) + ahead * cos - left * sin
        poses[..., 1] = np.interp(inside, self.s, self.xy[:, 1]) + ahead * sin + left * cos
        poses[..., 2] = yaw
        return poses

    def project(self, points: Array) -> Array:
        """Distances along and to the left ``[..., 2]``, of points ``[..., 2]``."""
        flat = points.reshape(-1, 2)
        # |p - q|² without |p|²
        nearest = ((self.xy**2).sum(1) - 2 * flat @ self.xy.T).argmin(1)
        cos = np.cos(self.yaw[nearest])
        sin = np.sin(self.yaw[nearest])
        x, y = (flat - self.xy[nearest]).T
        along = self.s[nearest] + x * cos + y * sin
        left = y * cos - x * sin
        return np.stack([along, left], -1).reshape(points.shape)
