"""Scenes as JSON files; docs/driving.md documents the format."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from driving_scenes.json_fields import Field, load_json, rows_by_name
from driving_scenes.scene import (
    AGENT_TYPES,
    Agents,
    Areas,
    EgoHistory,
    Lanes,
    Lights,
    Points,
    Roadblocks,
    RoadMap,
    Scene,
)

KNOWN = (
    *("name", "scene_type", "map", "route", "ego", "human_trajectory", "agents", "traffic_lights", "overrides"),
    *("log", "intent", "cameras", "previous", "follow_ups"),
)
AREAS = ("intersections", "carparks", "drivable_areas")
SIZE = ("length", "width", "height")
LONGEST_HISTORY = 10.0
"""Seconds, because comfort is measured over the whole history."""


def read_scene(path: str | Path) -> Scene:
    """Read a scene file. Relative paths of images start at its folder.

    Raises:
        SceneError: the file isn't JSON, or a field is missing or wrong.
    """
    scene = scene_from_json(load_json(path), str(path))
    folder = Path(path).absolute().parent
    cameras = {}
    for camera, images in scene.cameras.items():
        cameras[camera] = [str(folder / image) for image in images]
    return replace(scene, cameras=cameras)


def write_scene(scene: Scene, path: str | Path) -> None:
    """Write a scene file."""
    Path(path).write_text(json.dumps(scene_to_json(scene)), encoding="utf-8")


def scene_from_json(content: Any, file: str, road_map: RoadMap | None = None) -> Scene:
    """Make a scene; a given map replaces the object's own map.

    Raises:
        SceneError: a field is missing or wrong.
    """
    top = Field(content, file)
    name = top["name"].text()
    extra = top.unknown(KNOWN)
    synthetic = top["scene_type"].text(("original", "synthetic")) == "synthetic"
    road_map = road_map or map_from_json(top["map"])
    connectors = {name: row for row, name in enumerate(road_map.lanes.ids)}
    overrides = top.get("overrides").or_else({})
    overrides.unknown(("pdm_trajectory", "centerline"))
    plan = overrides.get("pdm_trajectory")
    line = overrides.get("centerline")
    human = top.get("human_trajectory")
    camera_field = top.get("cameras").or_else({})
    cameras = {}
    for camera in camera_field.unknown(()):
        cameras[camera] = [image.text() for image in camera_field[camera]]
    roadblocks = {name: row for row, name in enumerate(road_map.roadblocks.ids)}
    return Scene(
        name=name,
        synthetic=synthetic,
        map=road_map,
        route=top["route"].rows(roadblocks),
        ego=_read_ego(top["ego"]),
        human=None if human.value is None else human.tensor(8, 3),
        agents=_read_agents(top["agents"]),
        lights=_read_lights(top.get("traffic_lights", []), connectors),
        pdm_trajectory=None if plan.value is None else plan.tensor(41, 3),
        centerline=None if line.value is None else line.points(2),
        log=top.get("log").optional_text(),
        intent=top.get("intent").optional_text(),
        cameras=cameras,
        previous=top.get("previous").optional_text(),
        follow_ups=tuple(item.text() for item in top.get("follow_ups").or_else([])),
        extra=extra,
    )


def map_from_json(value: Field) -> RoadMap:
    """Read the field `map`."""
    value.unknown(("lanes", "roadblocks", *AREAS))
    lanes = list(value["lanes"])
    roadblocks = list(value["roadblocks"])
    for lane in lanes:
        lane.unknown(("speed_limit",))
    lane_rows = rows_by_name([lane["id"] for lane in lanes])
    block_rows = rows_by_name([block["id"] for block in roadblocks])
    return RoadMap(
        lanes=Lanes(
            ids=tuple(lane_rows),
            polygons=_read_polygons(lanes),
            centerlines=Points.polylines([lane["centerline"].points(2) for lane in lanes]),
            connector=torch.tensor([lane["connector"].flag() for lane in lanes], dtype=torch.bool),
            roadblock=torch.tensor([lane["roadblock"].row(block_rows) for lane in lanes], dtype=torch.int64),
            speed_limit=torch.tensor([_speed_limit(lane.get("speed_limit")) for lane in lanes], dtype=torch.float64),
            incoming=tuple(lane["incoming"].rows(lane_rows) for lane in lanes),
            outgoing=tuple(lane["outgoing"].rows(lane_rows) for lane in lanes),
        ),
        roadblocks=Roadblocks(
            ids=tuple(block_rows),
            polygons=_read_polygons(roadblocks),
            connector=torch.tensor([block["connector"].flag() for block in roadblocks], dtype=torch.bool),
            lanes=tuple(block["lanes"].rows(lane_rows) for block in roadblocks),
            incoming=tuple(block["incoming"].rows(block_rows) for block in roadblocks),
            outgoing=tuple(block["outgoing"].rows(block_rows) for block in roadblocks),
        ),
        intersections=_read_areas(value.get("intersections", [])),
        carparks=_read_areas(value.get("carparks", [])),
        drivable_areas=_read_areas(value.get("drivable_areas", [])),
    )


def _speed_limit(limit: Field) -> float:
    """Meters per second; NaN if unknown."""
    if limit.value is None:
        return math.nan
    speed = limit.number()
    if not speed > 0:
        raise limit.wrong("more than 0 m/s, or null")
    return speed


def _read_areas(value: Field) -> Areas:
    areas = list(value)
    return Areas(tuple(rows_by_name([area["id"] for area in areas])), _read_polygons(areas))


def _read_polygons(items: Sequence[Field]) -> Points:
    further = []
    for item in items:
        further.append([ring.points(3) for ring in item.get("holes").or_else([])])
    return Points.polygons([item["polygon"].points(3) for item in items], further)


def _round_times(times: Tensor) -> Tensor:
    """Round to microseconds, so that 1e-9 s is t = 0."""
    return times.mul(1e6).round().div(1e6)


def _read_ego(value: Field) -> EgoHistory:
    states = list(value)
    if not states:
        raise value.wrong("at least the state at t = 0")
    times = _round_times(torch.tensor([state["t"].number() for state in states], dtype=torch.float64))
    if times[-1] != 0 or (times.diff() <= 0).any():
        raise value.wrong("ascending times that end with t = 0", str(times.tolist()))
    if times[0] < -LONGEST_HISTORY:
        raise value.wrong(f"times from -{LONGEST_HISTORY:g} on", str(times.tolist()))
    return EgoHistory(
        times,
        torch.stack([state["pose"].tensor(3) for state in states]),
        torch.stack([state["velocity"].tensor(2) for state in states]),
        torch.stack([state["acceleration"].tensor(2) for state in states]),
    )


def _read_agents(value: Field) -> Agents:
    agents = list(value)
    tokens = rows_by_name([agent["token"] for agent in agents])
    tracks = []
    for agent in agents:
        track = agent["states"].tensor(-1, 6)
        track[:, 0] = _round_times(track[:, 0])
        if len(track) == 0 or (track[:, 0].diff() <= 0).any():
            raise agent["states"].wrong("states at ascending times, at least one")
        tracks.append(track)
    sizes = []
    for agent in agents:
        size = torch.stack([agent[side].tensor() for side in SIZE])
        if not (size[:2] > 0).all():
            raise agent.wrong("a length and a width greater than 0", str(size[:2].tolist()))
        sizes.append(size)
    # A column for each time at which some agent was seen.
    all_times = [torch.zeros(0, dtype=torch.float64)]
    all_times += [track[:, 0] for track in tracks]
    times: Tensor = torch.cat(all_times).unique()
    states = torch.zeros(len(agents), len(times), 5, dtype=torch.float64)
    seen = torch.zeros(len(agents), len(times), dtype=torch.bool)
    for row, track in enumerate(tracks):
        columns = torch.searchsorted(times, track[:, 0].contiguous())
        states[row, columns] = track[:, 1:]
        seen[row, columns] = True
    types = [AGENT_TYPES.index(agent["type"].text(AGENT_TYPES)) for agent in agents]
    shape = torch.stack(sizes) if sizes else torch.zeros(0, 3, dtype=torch.float64)
    return Agents(tuple(tokens), torch.tensor(types, dtype=torch.int64), shape, times, states, seen)


def _read_lights(value: Field, lanes: dict[str, int]) -> Lights:
    frames = list(value)
    times = _round_times(torch.tensor([frame["t"].number() for frame in frames], dtype=torch.float64))
    if (times.diff() <= 0).any():
        raise value.wrong("ascending times", str(times.tolist()))
    red, green = torch.zeros(2, len(frames), len(lanes), dtype=torch.bool)
    for row, frame in enumerate(frames):
        red[row, list(frame.get("red", []).rows(lanes))] = True
        green[row, list(frame.get("green", []).rows(lanes))] = True
    return Lights(times, red, green)


def scene_to_json(scene: Scene) -> dict[str, Any]:
    """Make the JSON object of a scene."""
    overrides = {"pdm_trajectory": scene.pdm_trajectory, "centerline": scene.centerline}
    optional = {
        "overrides": {key: value.tolist() for key, value in overrides.items() if value is not None},
        "log": scene.log,
        "intent": scene.intent,
        "cameras": {camera: list(paths) for camera, paths in scene.cameras.items()},
        "previous": scene.previous,
        "follow_ups": list(scene.follow_ups),
    }
    ego = scene.ego
    return {
        "name": scene.name,
        "scene_type": "synthetic" if scene.synthetic else "original",
        "map": _map_to_json(scene.map),
        "route": _names_of(scene.map.roadblocks.ids, scene.route),
        "ego": ego_to_json(ego.times, ego.poses, ego.velocities, ego.accelerations),
        "human_trajectory": None if scene.human is None else scene.human.tolist(),
        "agents": _agents_to_json(scene.agents),
        "traffic_lights": _lights_to_json(scene.lights, scene.map.lanes.ids),
        **{key: value for key, value in optional.items() if value},
        **scene.extra,
    }


def _agents_to_json(agents: Agents) -> list[dict[str, Any]]:
    content = []
    for row, token in enumerate(agents.tokens):
        seen = agents.seen[row]
        kind = AGENT_TYPES[int(agents.types[row])]
        states = torch.cat([agents.times[seen, None], agents.states[row, seen]], 1)
        content.append(agent_to_json(token, kind, agents.sizes[row].tolist(), states))
    return content


def _lights_to_json(lights: Lights, lanes: Sequence[str]) -> list[dict[str, Any]]:
    content = []
    for time, red, green in zip(lights.times.tolist(), lights.red, lights.green, strict=True):
        red_names = _names_of(lanes, red.nonzero()[:, 0])
        green_names = _names_of(lanes, green.nonzero()[:, 0])
        content.append({"t": time, "red": red_names, "green": green_names})
    return content


def _map_to_json(road_map: RoadMap) -> dict[str, Any]:
    lanes = road_map.lanes
    blocks = road_map.roadblocks
    block_content = []
    for row, name in enumerate(blocks.ids):
        block_content.append(
            {
                "id": name,
                "connector": bool(blocks.connector[row]),
                **_polygon_to_json(blocks.polygons, row),
                "lanes": _names_of(lanes.ids, blocks.lanes[row]),
                "incoming": _names_of(blocks.ids, blocks.incoming[row]),
                "outgoing": _names_of(blocks.ids, blocks.outgoing[row]),
            }
        )
    lane_content = []
    for row, name in enumerate(lanes.ids):
        limit = float(lanes.speed_limit[row])
        lane_content.append(
            {
                "id": name,
                "connector": bool(lanes.connector[row]),
                "roadblock": blocks.ids[int(lanes.roadblock[row])],
                **_polygon_to_json(lanes.polygons, row),
                "centerline": lanes.centerlines[row].tolist(),
                "speed_limit": None if math.isnan(limit) else limit,
                "incoming": _names_of(lanes.ids, lanes.incoming[row]),
                "outgoing": _names_of(lanes.ids, lanes.outgoing[row]),
            }
        )
    return {
        "roadblocks": block_content,
        "lanes": lane_content,
        "intersections": _areas_to_json(road_map.intersections),
        "carparks": _areas_to_json(road_map.carparks),
        "drivable_areas": _areas_to_json(road_map.drivable_areas),
    }


def _areas_to_json(areas: Areas) -> list[dict[str, Any]]:
    return [{"id": name, **_polygon_to_json(areas.polygons, row)} for row, name in enumerate(areas.ids)]


def _polygon_to_json(polygons: Points, row: int) -> dict[str, Any]:
    content: dict[str, Any] = {"polygon": polygons[row].tolist()}
    further = [ring.tolist() for of_row, ring in polygons.rings if of_row == row]
    if further:
        content["holes"] = further
    return content


def ego_to_json(*columns: Any) -> list[dict[str, Any]]:
    """The field `ego` from times, poses, velocities, accelerations."""
    times, poses, velocities, accelerations = (column.tolist() for column in columns)
    states = []
    for row, time in enumerate(times):
        states.append({"t": time, "pose": poses[row], "velocity": velocities[row], "acceleration": accelerations[row]})
    return states


def agent_to_json(token: str, kind: str, size: Sequence[float], states: Any) -> dict[str, Any]:
    """An item of the field `agents`; states are rows t, x, y, yaw, vx, vy."""
    return {"token": token, "type": kind, **dict(zip(SIZE, size, strict=True)), "states": states.tolist()}


def _names_of(ids: Sequence[str], rows: Iterable[Any]) -> list[str]:
    return [ids[int(row)] for row in rows]
