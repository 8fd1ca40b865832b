"""Drivable areas, lanes, the route and red lights."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from torch import Tensor

from lightning_cgrpo.navsim.render import style
from lightning_cgrpo.navsim.render.view import Array, View, draw_polygons
from lightning_cgrpo.scenes.scene import Points, Scene


def draw_roads(axes: Axes, scene: Scene, view: View, centerline: Tensor | None) -> None:
    """Draw areas, lanes, red lights, and the centerline ``[C, 2]``, if known."""
    road_map = scene.map
    lanes, blocks = road_map.lanes, road_map.roadblocks
    on_route = torch.zeros(len(blocks.ids), dtype=torch.bool)
    on_route[list(scene.route)] = True
    for areas in (road_map.drivable_areas, road_map.carparks):
        _fill(axes, view, areas.polygons, range(len(areas.ids)), style.CARPARK)
    roads = [row for row in range(len(blocks.ids)) if not blocks.connector[row]]
    _fill(axes, view, blocks.polygons, roads, style.ROAD, style.EDGE)
    _fill(axes, view, road_map.intersections.polygons, range(len(road_map.intersections.ids)), style.CONNECTOR)
    # Connectors included, although their roadblocks are not drivable, so that the route has no gaps.
    routed = [row for row in range(len(lanes.ids)) if on_route[lanes.roadblock[row]]]
    _fill(axes, view, lanes.polygons, routed, style.ON_ROUTE)
    edges = [row for row in range(len(lanes.ids)) if not lanes.connector[row]]
    _lines(axes, view, lanes.polygons, edges, color=style.LANE_EDGE, linewidth=0.9)
    dashed = {"color": style.LANE_LINE, "linewidth": 0.5, "linestyle": (0, (6, 5))}
    _lines(axes, view, lanes.centerlines, range(len(lanes.ids)), **dashed)
    if centerline is not None:
        line = view.points(centerline)
        axes.plot(line[:, 0], line[:, 1], color=style.CENTERLINE, linewidth=1.1, alpha=0.7, zorder=style.LINES)
    _draw_lights(axes, scene, view, on_route)


def _draw_lights(axes: Axes, scene: Scene, view: View, on_route: Tensor) -> None:
    """Draw connectors red within 0 to 4 s, with times; connectors of roadblocks ``on_route [B]`` bool are hatched."""
    lanes, lights = scene.map.lanes, scene.lights
    now = lights.times >= 0
    red, times = lights.red[now], lights.times[now]
    texts: dict[tuple[int, int, str], Array] = {}
    for lane in red.any(0).nonzero()[:, 0].tolist():
        polygon = view.points(lanes.polygons[lane])
        if not view.sees(polygon):
            continue
        counts = bool(on_route[lanes.roadblock[lane]])
        look: dict[str, Any] = {"alpha": 0.22, "hatch": "////"} if counts else {"alpha": 0.06}
        draw_polygons(
            axes, [polygon], style.RED_LIGHT, edgecolor=style.RED_LIGHT, linewidth=0.6, zorder=style.LINES, **look
        )
        start, after = view.points(lanes.centerlines[lane][:2])
        ahead = (after - start) / max(float(np.hypot(*(after - start))), 1e-9)
        aside = np.array([-ahead[1], ahead[0]]) * 1.5
        stop = np.stack([start - aside, start + aside])
        axes.plot(
            stop[:, 0], stop[:, 1], color=style.RED_LIGHT, linewidth=2.4 if counts else 1.2, zorder=style.LINES,
            solid_capstyle="butt",
        )  # fmt: skip
        # One text for all connectors that begin at one place.
        texts[round(start[0]), round(start[1]), _when(red[:, lane], times)] = start - ahead * 1.2
    for (_, _, when), place in texts.items():
        if when:
            axes.annotate(
                when, tuple(place), ha="center", va="center", fontsize=6.5, color=style.RED_LIGHT, zorder=style.SIGNS,
                annotation_clip=True,
            )  # fmt: skip


def _when(red: Tensor, times: Tensor) -> str:
    """Text such as ``red from 1 to 2.5 s`` of flags ``[T]``, each held until the next time; empty if always red."""
    texts, begin = [], None
    for at, on in [*zip(times.tolist(), red.tolist(), strict=True), (None, False)]:
        if on and begin is None:
            begin = at
        if not on and begin is not None:
            texts.append(" ".join(["from", f"{begin:g}"] * (begin > 0) + ([] if at is None else ["to", f"{at:g}"])))
            begin = None
    return f"red {', '.join(texts)} s" if any(texts) else ""


def _fill(axes: Axes, view: View, polygons: Points, rows: Iterable[int], color: str, edge: str | None = None) -> None:
    polygons = polygons.drawn()
    drawn = [polygon for polygon in (view.points(polygons[row]) for row in rows) if view.sees(polygon)]
    draw_polygons(axes, drawn, color, edgecolor=edge or color, linewidth=0.5, zorder=style.ROADS)


def _lines(axes: Axes, view: View, lines: Points, rows: Iterable[int], **look: Any) -> None:
    # With the padding, which repeats the first point and so closes polygons.
    drawn = [line for line in (view.points(lines.xy[row]) for row in rows) if view.sees(line)]
    axes.add_collection(LineCollection(drawn, zorder=style.LINES, **look))
