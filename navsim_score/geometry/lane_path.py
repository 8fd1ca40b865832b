"""Paths along lanes. docs/navsim_score_scenes.md §12; officially pdm_path.py and polyline_map_object.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import shapely
import shapely.ops
import torch

Array = npt.NDArray[np.float64]
CORRIDOR_QUADRANT_SEGMENTS = 16


def wrap(angle: Array) -> Array:
    """Wrap to [-pi, pi]."""
    wrapped: Array = np.arctan2(np.sin(angle), np.cos(angle))
    return wrapped


def headings(points: Array) -> Array:
    """``[V]`` headings from each of points ``[V, 2]`` to the next; the last point has the heading before it."""
    steps = np.diff(points, axis=0)
    angles = np.arctan2(steps[:, 1], steps[:, 0])
    return np.append(angles, angles[-1])


@dataclass(frozen=True, eq=False)
class LanePath:
    """A path through at least two points; points where lanes join appear twice."""

    points: Array  # [V, 2]
    headings: Array  # [V]

    @classmethod
    def along(cls, lines: Sequence[Array]) -> LanePath:
        """Join polylines; headings stay within their own line."""
        return cls(np.concatenate(lines), np.concatenate([headings(line) for line in lines]))

    @cached_property
    def distances(self) -> Array:
        """Distances ``[V]`` of the points along the path."""
        steps = np.linalg.norm(np.diff(self.points, axis=0), axis=1)
        distances: Array = np.append(0.0, steps).cumsum()
        return distances

    @cached_property
    def poses(self) -> Array:
        """Poses ``[V, 3]`` at the points, with continuous headings."""
        return np.column_stack([self.points, np.unwrap(self.headings)])

    @property
    def length(self) -> float:
        return float(self.distances[-1])

    @cached_property
    def line(self) -> shapely.LineString:
        return shapely.LineString(self.points)

    def project(self, points: Array) -> Array:
        """Distances ``[...]`` along the path of the nearest places to points ``[..., 2]``."""
        distances: Array = shapely.line_locate_point(self.line, shapely.points(points))
        return distances

    def at(self, distances: Array) -> Array:
        """Poses ``[..., 3]`` at distances ``[...]``, clipped to the path."""
        poses: Array = LanePaths([self]).at(np.reshape(distances, (1, -1))).reshape(*np.shape(distances), 3)
        return poses

    def shifted(self, offset: float) -> LanePath:
        """Shift the path by ``offset`` meters to the left (negative: to the right)."""
        left = self.headings + np.pi / 2
        shift = offset * np.column_stack([np.cos(left), np.sin(left)])
        return LanePath(self.points + shift, self.headings)

    def corridor(self, start: float, end: float, half_width: float) -> shapely.Geometry:
        """The area within ``half_width`` meters of the path between two distances."""
        start, end = np.clip([start, end], 0.0, self.length).tolist()
        between = (start <= self.distances) & (self.distances <= end)
        if between.sum() > 1:
            part = shapely.LineString(self.points[between])
        else:
            part = shapely.ops.substring(self.line, start, end)
        return shapely.buffer(part, half_width, quad_segs=CORRIDOR_QUADRANT_SEGMENTS, cap_style="square")


class LanePaths:
    """P paths, asked together; rows are padded."""

    def __init__(self, paths: Sequence[LanePath]) -> None:
        self.last = np.array([len(path.points) - 1 for path in paths])
        self.distances: Array = np.full((len(paths), self.last.max() + 1), np.inf)
        self.poses: Array = np.zeros((*self.distances.shape, 3))
        for row, path in enumerate(paths):
            self.distances[row, : len(path.points)] = path.distances
            self.poses[row, : len(path.points)] = path.poses
        self.lengths = np.array([path.length for path in paths])
        self.lines = np.array([path.line for path in paths], dtype=object)

    def at(self, distances: Array) -> Array:
        """Poses ``[P, n, 3]`` at distances ``[P, n]``, clipped to the paths."""
        # A path that starts with the same point twice has no direction at 0.
        kept = np.clip(distances, 1e-5, self.lengths[:, None])
        # The points before and after each distance.
        high = torch.searchsorted(torch.from_numpy(self.distances), torch.from_numpy(kept)).numpy()
        high = high.clip(1, self.last[:, None])
        low = high - 1
        row = np.arange(len(kept))[:, None]
        begin = self.distances[row, low]
        start = self.poses[row, low]
        with np.errstate(invalid="ignore", divide="ignore"):
            slope = (self.poses[row, high] - start) / (self.distances[row, high] - begin)[..., None]
            poses: Array = slope * (kept - begin)[..., None] + start
        poses[..., 2] = wrap(poses[..., 2])
        return np.nan_to_num(poses)
