"""Drivable areas, lanes, the route and red lights."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from torch import Tensor

from driving_scenes.scene import Points, Scene
from navsim_score.render import style
from navsim_score.render.view import View, draw_polygons


def draw_roads(axes: Axes, scene: Scene, view: View, centerline: Tensor | None) -> None:
    """Draw areas, lanes, red lights, and the centerline ``[C, 2]``, if known."""
    road_map = scene.map
    lanes = road_map.lanes
    blocks = road_map.roadblocks
    on_route = torch.zeros(len(blocks.ids), dtype=torch.bool)
    on_route[list(scene.route)] = True
    for areas in (road_map.drivable_areas, road_map.carparks):
        _fill_polygons(axes, view, areas.polygons, range(len(areas.ids)), style.CARPARK)
    roads = [row for row in range(len(blocks.ids)) if not blocks.connector[row]]
    _fill_polygons(axes, view, blocks.polygons, roads, style.ROAD, style.EDGE)
    _fill_polygons(axes, view, road_map.intersections.polygons, range(len(road_map.intersections.ids)), style.CONNECTOR)
    # Connectors included, although their roadblocks are not drivable, so that the route has no gaps.
    routed = [row for row in range(len(lanes.ids)) if on_route[lanes.roadblock[row]]]
    _fill_polygons(axes, view, lanes.polygons, routed, style.ON_ROUTE)
    edges = [row for row in range(len(lanes.ids)) if not lanes.connector[row]]
    _draw_lines(axes, view, lanes.polygons, edges, color=style.LANE_EDGE, linewidth=0.9)
    dashed = {"color": style.LANE_LINE, "linewidth": 0.5, "linestyle": (0, (6, 5))}
    _draw_lines(axes, view, lanes.centerlines, range(len(lanes.ids)), **dashed)
    if centerline is not None:
        line = view.points(centerline)
        axes.plot(line[:, 0], line[:, 1], color=style.CENTERLINE, linewidth=1.1, alpha=0.7, zorder=style.LINES)
    _draw_lights(axes, scene, view, on_route)


def _draw_lights(axes: Axes, scene: Scene, view: View, on_route: Tensor) -> None:
    """Draw connectors that are red within 0 to 4 s; connectors of roadblocks ``on_route [B]`` bool are hatched."""
    lanes = scene.map.lanes
    lights = scene.lights
    red = lights.red[lights.times >= 0].any(0).nonzero()[:, 0]
    for lane in red.tolist():
        polygon = view.points(lanes.polygons[lane])
        if not view.sees(polygon):
            continue
        look: dict[str, Any] = {"alpha": 0.06}
        if bool(on_route[lanes.roadblock[lane]]):
            look = {"alpha": 0.22, "hatch": "////"}
        draw_polygons(
            axes, [polygon], style.RED_LIGHT, edgecolor=style.RED_LIGHT, linewidth=0.6, zorder=style.LINES, **look
        )


def _fill_polygons(
    axes: Axes, view: View, polygons: Points, rows: Iterable[int], color: str, edge: str | None = None
) -> None:
    polygons = polygons.drawn()
    everywhere = [view.points(polygons[row]) for row in rows]
    drawn = [polygon for polygon in everywhere if view.sees(polygon)]
    draw_polygons(axes, drawn, color, edgecolor=edge or color, linewidth=0.5, zorder=style.ROADS)


def _draw_lines(axes: Axes, view: View, lines: Points, rows: Iterable[int], **look: Any) -> None:
    # With the padding, which repeats the first point and so closes polygons.
    everywhere = [view.points(lines.xy[row]) for row in rows]
    drawn = [line for line in everywhere if view.sees(line)]
    axes.add_collection(LineCollection(drawn, zorder=style.LINES, **look))
