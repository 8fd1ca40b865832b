"""Argoverse 2's vector map as nuPlan's lanes, roadblocks and intersections."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import shapely
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from driving_scenes.json_fields import Field, SceneError, load_json
from driving_scenes.scene import RoadMap
from driving_scenes.scene_file import map_from_json
from examples.scene_sources.argoverse2.log import MAPS, Array

SPACING = 1.0
"""Meters between the points of a centerline."""
BLOCK_MARGIN = 0.05
"""Meters added to lanes, so that neighbors unite."""
JUNCTION_MARGIN = 0.3


def read_map(folder: Path) -> RoadMap:
    """Read the map of a log, without bike lanes and speed limits.

    A lane in an intersection is a connector with a roadblock of its own. Other neighbors of one direction share a
    roadblock. Connectors form the intersections, drivable areas the carparks.

    Raises:
        SceneError: the map is missing, or a field is missing or wrong.
    """
    files = sorted(folder.glob(MAPS))
    if len(files) != 1:
        raise SceneError(f"{folder}: Expected one file {MAPS}, but got {len(files)}.")
    top = Field(load_json(files[0]), str(files[0]))
    segments = {str(segment["id"].value): segment for segment in _values(top["lane_segments"])}
    segments = {name: segments[name] for name in sorted(segments) if segments[name]["lane_type"].text() != "BIKE"}
    lanes = {name: _lane(name, segment) for name, segment in segments.items()}
    for name, segment in segments.items():
        lanes[name]["outgoing"] = [str(other.value) for other in segment["successors"] if str(other.value) in lanes]
    blocks = {}
    for members in _neighbors(segments, lanes):
        block = f"rb{members[-1]}"
        blocks[block] = {
            "id": block,
            "connector": lanes[members[0]]["connector"],
            "polygon": _outline(max(_united([lanes[member] for member in members], BLOCK_MARGIN), key=shapely.area)),
            "lanes": members,
        }
        for member in members:
            lanes[member]["roadblock"] = block
    for name, content in blocks.items():
        after = {lanes[other]["roadblock"] for lane in content["lanes"] for other in lanes[lane]["outgoing"]}
        content["outgoing"] = sorted(after - {name})
    for graph in (lanes, blocks):
        for node in graph.values():
            node["incoming"] = []
        for name in sorted(graph):
            for other in graph[name]["outgoing"]:
                graph[other]["incoming"].append(name)
    connectors = [lane for lane in lanes.values() if lane["connector"]]
    areas = _values(top["drivable_areas"])
    content = {
        "lanes": list(lanes.values()),
        "roadblocks": list(blocks.values()),
        "intersections": [
            {"id": f"int{i}", "polygon": _outline(area)} for i, area in enumerate(_united(connectors, JUNCTION_MARGIN))
        ],
        "carparks": [
            {"id": f"da{i}", "polygon": _points(area["area_boundary"]).tolist()} for i, area in enumerate(areas)
        ],
    }
    return map_from_json(Field(content, str(files[0])))


def _lane(name: str, segment: Field) -> dict[str, Any]:
    left, right = _points(segment["left_lane_boundary"]), _points(segment["right_lane_boundary"])
    count = max(4, math.ceil(_length(left)[-1] / SPACING))
    return {
        "id": name,
        "connector": segment["is_intersection"].flag(),
        "polygon": np.concatenate([left, right[::-1]]).tolist(),
        "centerline": ((_resampled(left, count) + _resampled(right, count)) / 2).tolist(),
    }


def _neighbors(segments: dict[str, Field], lanes: dict[str, dict[str, Any]]) -> list[list[str]]:
    rows = {name: row for row, name in enumerate(lanes)}
    along = {name: np.subtract(lane["centerline"][-1], lane["centerline"][0]) for name, lane in lanes.items()}
    pairs = [
        (rows[name], rows[other])
        for name, segment in segments.items()
        for other in (str(segment[side].value) for side in ("left_neighbor_id", "right_neighbor_id"))
        if other in rows
        and not (lanes[name]["connector"] or lanes[other]["connector"])
        and along[name] @ along[other] > 0
    ]
    one, other = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    graph = coo_array((np.ones(len(pairs)), (one, other)), shape=(len(rows), len(rows)))
    blocks: dict[int, list[str]] = {}
    for name, block in zip(lanes, connected_components(graph, directed=False)[1].tolist(), strict=True):
        blocks.setdefault(block, []).append(name)
    return list(blocks.values())


def _united(lanes: list[dict[str, Any]], margin: float) -> list[shapely.Polygon]:
    widened = shapely.buffer([shapely.Polygon(lane["polygon"]) for lane in lanes], margin, quad_segs=16)
    return list(shapely.get_parts(shapely.union_all(widened)))


def _outline(polygon: shapely.Polygon) -> list[list[float]]:
    return shapely.get_coordinates(polygon.exterior)[:-1].tolist()  # type: ignore[no-any-return]


def _values(field: Field) -> list[Field]:
    if not isinstance(field.value, dict):
        raise field.wrong("an object")
    return [field[key] for key in field.value]


def _points(field: Field) -> Array:
    try:
        points = np.array([[point["x"], point["y"]] for point in field.value], dtype=np.float64)
    except (TypeError, KeyError, ValueError):
        raise field.wrong("a list of points with x and y") from None
    if len(points) < 2:
        raise field.wrong("at least two points", str(len(points)))
    return points


def _length(line: Array) -> Array:
    return np.concatenate([[0], np.hypot(*np.diff(line, axis=0).T).cumsum()])


def _resampled(line: Array, count: int) -> Array:
    length = _length(line)
    at = np.linspace(0, length[-1], count)
    return np.stack([np.interp(at, length, column) for column in line.T], -1)
