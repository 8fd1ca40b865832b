"""Map polygons. docs/navsim_score.md §5 and §6; officially ``pdm_occupancy_map.py:129-186``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import shapely
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from driving_scenes.scene import Lights, Points, Scene
from driving_scenes.vehicle import centers
from navsim_score.geometry.boxes import bounds, bounds_touch
from navsim_score.geometry.polygons import Polygons
from navsim_score.geometry.shapes import polygons as shapes
from navsim_score.route.road import MAP_RADIUS
from navsim_score.simulation.timing import DT, EARLY, STEPS

LIGHT_HOLD = 0.5  # seconds for which the state of a traffic light is held


@dataclass(frozen=True, eq=False)
class Surfaces:
    """Map polygons near the egos of S scenes, padded to P per scene."""

    polygons: Polygons
    table: Tensor  # [S, P] int64 rows of `polygons`; padding is row 0, without any flag below
    lane: Tensor  # [S, P] bool, lanes and lane connectors
    on_route: Tensor  # [S, P] bool, lanes of the plan's route
    drivable: Tensor  # [S, P] bool, polygons that the ego's corners may be on
    intersection: Tensor  # [S, P] bool
    red_table: Tensor  # [S, C] int64 rows of `polygons`: connectors of the mission's route that are red at some step
    red: Tensor  # [S, 41, C] bool, red at a step

    @classmethod
    def of(cls, scenes: Sequence[Scene], route_lanes: Sequence[Sequence[int]], device: torch.device | str) -> Surfaces:
        """Collect surfaces of S scenes with routes of lanes (rows of the map)."""
        layers: list[Tensor] = []
        rings: list[tuple[int, Tensor]] = []
        flags = []
        reds = []
        begin = 0
        for scene, lanes in zip(scenes, route_lanes, strict=True):
            near, flag = _near_polygons(scene, lanes)
            red, closed = _red_connectors(scene)
            for points in (*near, red):
                layers.append(points.xy.to(device))
                rings += [(begin + row, ring.to(device)) for row, ring in points.rings]
                begin += len(points)
            flags.append(flag)
            reds.append(closed)
        return cls.padded(Polygons.of(layers, rings), flags, reds, device)

    @classmethod
    def padded(
        cls, polygons: Polygons, flags: list[Tensor], reds: list[Tensor], device: torch.device | str
    ) -> Surfaces:
        """Surfaces of S scenes, padded.

        Args:
            polygons: of all scenes, one after the other; of a scene, those near the ego, then the red connectors.
            flags: ``[P, 4]`` by scene: lane, on_route, drivable, intersection.
            reds: ``[C, 41]`` by scene.
        """
        tables = []
        red_tables = []
        total = 0
        for flag, red in zip(flags, reds, strict=True):
            tables.append(torch.arange(len(flag)) + total)
            red_tables.append(torch.arange(len(red)) + total + len(flag))
            total += len(flag) + len(red)
        lane, on_route, drivable, intersection = pad_sequence(flags, batch_first=True).to(device).unbind(-1)
        return cls(
            polygons=polygons,
            table=pad_sequence(tables, batch_first=True).to(device),
            lane=lane,
            on_route=on_route,
            drivable=drivable,
            intersection=intersection,
            red_table=pad_sequence(red_tables, batch_first=True).to(device),
            red=pad_sequence(reds, batch_first=True).to(device).transpose(1, 2),
        )


def _near_polygons(scene: Scene, route_lanes: Sequence[int]) -> tuple[list[Points], Tensor]:
    """Polygons by layer, and flags ``[sum of n, 4]``: lane, on_route, drivable, intersection."""
    lanes = scene.map.lanes
    blocks = scene.map.roadblocks
    crossings = scene.map.intersections.polygons
    carparks = scene.map.carparks.polygons
    drivable = scene.map.drivable_areas.polygons
    x, y = centers(scene.ego.poses[-1]).tolist()
    patch = shapely.box(x - MAP_RADIUS, y - MAP_RADIUS, x + MAP_RADIUS, y + MAP_RADIUS)
    block = _touch_patch(blocks.polygons, patch)
    on_route = torch.zeros(len(lanes.ids), dtype=torch.bool)
    on_route[list(route_lanes)] = True
    layers = [  # polygons, which of them, flags: lane, on the route, drivable, intersection
        (lanes.polygons, block[lanes.roadblock], (True, on_route, False, False)),
        (blocks.polygons, block & ~blocks.connector, (False, False, True, False)),
        (crossings, _touch_patch(crossings, patch), (False, False, True, True)),
        (carparks, _touch_patch(carparks, patch), (False, False, True, False)),
        (drivable, _touch_patch(drivable, patch), (False, False, True, False)),
    ]
    kept = []
    columns = []
    for polygons, keep, flags in layers:
        kept.append(polygons.kept(keep))
        of_layer = [torch.as_tensor(flag).expand(len(polygons)) for flag in flags]
        columns.append(torch.stack(of_layer, 1)[keep])
    return kept, torch.cat(columns)


def _touch_patch(polygons: Points, patch: shapely.Polygon) -> Tensor:
    xy = polygons.xy
    if not len(xy):
        return torch.zeros(0, dtype=torch.bool)
    box = xy.new_tensor(patch.bounds)
    touching: Tensor = ((xy >= box[:2]) & (xy <= box[2:])).all(-1).any(-1)
    near = bounds_touch(bounds(xy), box)
    near[[row for row, _ in polygons.rings]] = True  # further parts may be nearer than the first ring
    unclear = ~touching & near
    touching[unclear] = torch.from_numpy(shapely.intersects(shapes(polygons.kept(unclear)), patch))
    return touching


def _red_connectors(scene: Scene) -> tuple[Points, Tensor]:
    """Connectors of the mission's route that are red at some step: C polygons, red ``[C, 41]``."""
    lanes = scene.map.lanes
    mission = torch.isin(lanes.roadblock, torch.tensor(scene.route, dtype=torch.int64))
    red = red_at_steps(scene.lights).T & mission[:, None]
    ever = red.any(1)
    return lanes.polygons.kept(ever), red[ever]


def red_at_steps(lights: Lights) -> Tensor:
    """``[41, L]`` bool: lanes with a red light at 10 Hz; a state holds for 0.5 s, then is unknown (False)."""
    steps = torch.arange(STEPS, dtype=torch.float64) * DT + EARLY
    latest = torch.searchsorted(lights.times, steps, right=True) - 1
    if not len(lights.times):
        return lights.red.new_zeros(STEPS, lights.red.shape[1])
    holds = (latest >= 0) & (steps - lights.times[latest.clamp(0)] < LIGHT_HOLD)
    return lights.red[latest.clamp(0)] & holds[:, None]
