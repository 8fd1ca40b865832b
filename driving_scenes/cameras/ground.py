"""Roads and lane borders on the ground."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from driving_scenes.cameras.camera import AREA, BORDER, JUNCTION, LEFT_BORDER, ROAD, SIGHT, Array, Color
from driving_scenes.scene import Lanes, Points, RoadMap

BORDER_WIDTH = 0.2


def ground_layers(road_map: RoadMap, origin: Array) -> Iterator[tuple[Array, Color]]:
    """Layers of polygons ``[N, V, 2]``, from bottom to top."""
    for areas in (road_map.drivable_areas, road_map.carparks):
        yield _near_polygons(origin, areas.polygons), AREA
    yield _near_polygons(origin, road_map.roadblocks.polygons, ~road_map.roadblocks.connector.numpy()), ROAD
    yield _near_polygons(origin, road_map.intersections.polygons), JUNCTION
    # A border between two lanes is left and right at once; drawn last, it ends up white.
    left, right = _lane_borders(road_map.lanes, origin)
    yield left, LEFT_BORDER
    yield right, BORDER


def _near_polygons(origin: Array, polygons: Points, chosen: Array | bool = True) -> Array:
    polygons = polygons.drawn()
    near: Array = (polygons.xy.numpy()[_near_rows(origin, polygons) & chosen] - origin).astype(np.float32)
    return near


def _near_rows(origin: Array, polygons: Points) -> Array:
    if not len(polygons):
        return np.zeros(0, bool)
    xy = polygons.xy.numpy() - origin
    near: Array = ((xy.min(1) < SIGHT) & (xy.max(1) > -SIGHT)).all(1)
    return near


def _lane_borders(lanes: Lanes, origin: Array) -> tuple[Array, Array]:
    """Left and right lane borders, as thin polygons ``[N, V, 2]``."""
    sides: tuple[list[Array], list[Array]] = ([], [])
    for row in np.flatnonzero(_near_rows(origin, lanes.polygons) & ~lanes.connector.numpy()).tolist():
        borders = _split_borders(lanes.polygons[row].numpy() - origin, lanes.centerlines[row].numpy() - origin)
        for side, line in zip(sides, borders, strict=True):
            if len(line) > 1:
                side.append(line)
    left, right = sides
    return _border_ribbons(left), _border_ribbons(right)


def _split_borders(outline: Array, line: Array) -> tuple[Array, Array]:
    """Left and right border of a lane ``[V, 2]`` with a centerline ``[C, 2]``."""
    count = len(outline)
    twice = np.concatenate([outline, outline])
    following = twice[1 : count + 1]
    # The edges of the outline nearest to the centerline's ends are the lane's ends.
    middles = (outline + following) / 2
    start = int(np.square(middles - line[0]).sum(1).argmin())
    end = int(np.square(middles - line[-1]).sum(1).argmin())
    after_start = twice[start + 1 : start + 1 + (end - start) % count]
    after_end = twice[end + 1 : end + 1 + (start - end) % count]
    # Counterclockwise, the border between start and end is the right one.
    counterclockwise = (outline[:, 0] * following[:, 1] - outline[:, 1] * following[:, 0]).sum() > 0
    if counterclockwise:
        return after_end, after_start
    return after_start, after_end


def _border_ribbons(lines: Sequence[Array]) -> Array:
    """Polygons ``[N, 2 V, 2]`` around N lines of up to V points."""
    if not lines:
        return np.zeros((0, 0, 2), np.float32)
    xy: Array = Points.polylines(lines).xy.numpy()
    steps = np.diff(xy, axis=1)
    steps /= np.maximum(np.hypot(steps[..., 0], steps[..., 1]), 1e-9)[..., None]
    ahead = np.concatenate([steps[:, :1], steps], 1) + np.concatenate([steps, steps[:, -1:]], 1)
    ahead *= BORDER_WIDTH / 2 / np.maximum(np.hypot(ahead[..., 0], ahead[..., 1]), 1e-9)[..., None]
    aside = np.stack([-ahead[..., 1], ahead[..., 0]], -1)
    ribbons: Array = np.concatenate([xy + aside, (xy - aside)[:, ::-1]], 1).astype(np.float32)
    return ribbons
