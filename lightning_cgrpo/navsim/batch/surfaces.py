"""What of the map the scores ask for.

See docs/navsim_score.md §5 and §6; officially ``pdm_occupancy_map.py:129-186``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import shapely
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lightning_cgrpo.navsim.geometry.boxes import bounds, bounds_touch
from lightning_cgrpo.navsim.geometry.polygons import Polygons
from lightning_cgrpo.navsim.simulation.timing import DT, STEPS
from lightning_cgrpo.scenes.scene import Lights, Points, Scene
from lightning_cgrpo.scenes.vehicle import centers

if TYPE_CHECKING:
    from lightning_cgrpo.navsim.expert.pdm_closed import Plan

MAP_RADIUS = 100.0
"""Half the side, in meters, of the square around the ego that a polygon must touch to be part of the map."""
LIGHT_HOLD = 0.5
"""Seconds that the state of a traffic light is held."""
EARLY = 1e-6
"""Seconds by which times may differ and still count as equal."""


@dataclass(frozen=True, eq=False)
class Surfaces:
    """The map polygons near the ego of S scenes, P per scene, padded.

    Args:
        polygons: of all scenes.
        table: ``[S, P]`` int64 rows of `polygons`; those of padding are 0 and have no flag below.
        lane: ``[S, P]`` bool, lanes and lane connectors.
        on_route: ``[S, P]`` bool, lanes of the plan's route.
        drivable: ``[S, P]`` bool, what the corners of the ego must be on.
        intersection: ``[S, P]`` bool.
        red_table: ``[S, C]`` int64 rows of `polygons`: the connectors of the mission's route that ever are red.
        red: ``[S, 41, C]`` bool, red at a step.
    """

    polygons: Polygons
    table: Tensor
    lane: Tensor
    on_route: Tensor
    drivable: Tensor
    intersection: Tensor
    red_table: Tensor
    red: Tensor

    @classmethod
    def of(
        cls,
        scenes: Sequence[Scene],
        plans: Sequence[Plan],
        origin: Tensor,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> Surfaces:
        """Of scenes and their plans, with positions relative to ``origin [S, 2]``."""
        layers: list[Tensor] = []
        tables, flags, red_tables, reds = [], [], [], []
        total = 0
        for scene, plan, shift in zip(scenes, plans, origin, strict=True):
            near = _near(scene, plan)
            red, closed = _red(scene)
            layers += [(xy - shift).to(device, dtype) for xy in (*(xy for xy, _ in near), red)]
            flags.append(torch.cat([flag for _, flag in near]))
            tables.append(torch.arange(len(flags[-1])) + total)
            total += len(tables[-1])
            red_tables.append(torch.arange(len(red)) + total)
            total += len(red)
            reds.append(closed)
        table, flag, red_table, closed = (
            pad_sequence(rows, batch_first=True).to(device) for rows in (tables, flags, red_tables, reds)
        )
        lane, on_route, drivable, intersection = flag.unbind(-1)
        polygons = Polygons.of(layers)
        return cls(polygons, table, lane, on_route, drivable, intersection, red_table, closed.transpose(1, 2))


def _near(scene: Scene, plan: Plan) -> list[tuple[Tensor, Tensor]]:
    """The layers of a scene's map around the ego: polygons ``[n, V, 2]``, and flags ``[n, 4]``, see `Surfaces`."""
    lanes, blocks, areas = scene.map.lanes, scene.map.roadblocks, scene.map
    x, y = centers(scene.ego.poses[-1]).tolist()
    patch = shapely.box(x - MAP_RADIUS, y - MAP_RADIUS, x + MAP_RADIUS, y + MAP_RADIUS)
    block = _touching(blocks.polygons, patch)
    on_route = torch.zeros(len(lanes.ids), dtype=torch.bool)
    on_route[list(plan.route_lanes)] = True
    layers = [
        # which, and whether it is: lane, on the route, drivable, intersection
        (lanes.polygons, block[lanes.roadblock], (True, on_route, False, False)),
        (blocks.polygons, block & ~blocks.connector, (False, False, True, False)),
        (areas.intersections.polygons, None, (False, False, True, True)),
        (areas.carparks.polygons, None, (False, False, True, False)),
        (areas.drivable_areas.polygons, None, (False, False, True, False)),
    ]
    found = []
    for polygons, keep, flags in layers:
        keep = _touching(polygons, patch) if keep is None else keep
        columns = [torch.as_tensor(flag).expand(len(polygons)) for flag in flags]
        found.append((polygons.xy[keep], torch.stack(columns, 1)[keep]))
    return found


def _touching(polygons: Points, patch: shapely.Polygon) -> Tensor:
    """``[N]`` whether polygons touch an axis-aligned box."""
    xy = polygons.xy
    if not len(xy):
        return torch.zeros(0, dtype=torch.bool)
    box = xy.new_tensor(patch.bounds)
    touching: Tensor = ((xy >= box[:2]) & (xy <= box[2:])).all(-1).any(-1)
    unclear = (~touching & bounds_touch(bounds(xy), box)).nonzero()[:, 0].tolist()
    for row in unclear:
        touching[row] = bool(shapely.Polygon(polygons[row].numpy()).intersects(patch))
    return touching


def _red(scene: Scene) -> tuple[Tensor, Tensor]:
    """Connectors of the mission's route that are red at any step: polygons ``[C, V, 2]``, red ``[C, 41]``."""
    lanes = scene.map.lanes
    mission = torch.isin(lanes.roadblock, torch.tensor(scene.route, dtype=torch.int64))
    red = held(scene.lights, scene.lights.red).T & mission[:, None]
    ever = red.any(1)
    return lanes.polygons.xy[ever], red[ever]


def held(lights: Lights, states: Tensor) -> Tensor:
    """``[41, L]`` states ``[T, L]`` of traffic lights at 10 Hz, each held for 0.5 s and then unknown (False)."""
    steps = torch.arange(STEPS, dtype=torch.float64) * DT + EARLY
    latest = torch.searchsorted(lights.times, steps, right=True) - 1
    known = latest >= 0
    if len(lights.times):
        known &= steps - lights.times[latest.clamp(0)] < LIGHT_HOLD
        return states[latest.clamp(0)] & known[:, None]
    return states.new_zeros(STEPS, states.shape[1])
