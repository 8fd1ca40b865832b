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

from driving_scenes.json_fields import Field, load_json, numbers
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
    return Scene(
        name=name,
        synthetic=synthetic,
        map=road_map,
        route=top["route"].rows({name: row for row, name in enumerate(road_map.roadblocks.ids)}),
        ego=_ego(top["ego"]),
        human=None if human.value is None else human.tensor(8, 3),
        agents=_agents(top["agents"]),
        lights=_lights(top.get("traffic_lights", []), connectors),
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
    lane_rows = numbers([lane["id"] for lane in lanes])
    block_rows = numbers([block["id"] for block in roadblocks])
    return RoadMap(
        lanes=Lanes(
            ids=tuple(lane_rows),
            polygons=_polygons(lanes),
            centerlines=Points.polylines([lane["centerline"].points(2) for lane in lanes]),
            connector=torch.tensor([lane["connector"].flag() for lane in lanes], dtype=torch.bool),
            roadblock=torch.tensor([lane["roadblock"].row(block_rows) for lane in lanes], dtype=torch.int64),
            speed_limit=torch.tensor([_limit(lane.get("speed_limit")) for lane in lanes], dtype=torch.float64),
            incoming=tuple(lane["incoming"].rows(lane_rows) for lane in lanes),
            outgoing=tuple(lane["outgoing"].rows(lane_rows) for lane in lanes),
        ),
        roadblocks=Roadblocks(
            ids=tuple(block_rows),
            polygons=_polygons(roadblocks),
            connector=torch.tensor([block["connector"].flag() for block in roadblocks], dtype=torch.bool),
            lanes=tuple(block["lanes"].rows(lane_rows) for block in roadblocks),
            incoming=tuple(block["incoming"].rows(block_rows) for block in roadblocks),
            outgoing=tuple(block["outgoing"].rows(block_rows) for block in roadblocks),
        ),
        intersections=_areas(value.get("intersections", [])),
        carparks=_areas(value.get("carparks", [])),
        drivable_areas=_areas(value.get("drivable_areas", [])),
    )


def _limit(limit: Field) -> float:
    """Meters per second; NaN if unknown."""
    if limit.value is None:
        return math.nan
    speed = limit.number()
    if not speed > 0:
        raise limit.wrong("more than 0 m/s, or null")
    return speed


def _areas(value: Field) -> Areas:
    areas = list(value)
    return Areas(tuple(numbers([area["id"] for area in areas])), _polygons(areas))


def _polygons(items: Sequence[Field]) -> Points:
    further = []
    for item in items:
        further.append([ring.points(3) for ring in item.get("holes").or_else([])])
    return Points.polygons([item["polygon"].points(3) for item in items], further)


def _rounded(times: Tensor) -> Tensor:
    """Round to microseconds, so that 1e-9 s is t = 0."""
    return times.mul(1e6).round().div(1e6)


def _ego(value: Field) -> EgoHistory:
    states = list(value)
    if not states:
        raise value.wrong("at least the state at t = 0")
    times = _rounded(torch.tensor([state["t"].number() for state in states], dtype=torch.float64))
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


def _agents(value: Field) -> Agents:
    agents = list(value)
    tokens = numbers([agent["token"] for agent in agents])
    tracks = []
    for agent in agents:
        track = agent["states"].tensor(-1, 6)
        track[:, 0] = _rounded(track[:, 0])
        if len(track) == 0 or (track[:, 0].diff() <= 0).any():
            raise agent["states"].wrong("states at ascending times, at least one")
        tracks.append(track)
    sizes = []
    for agent in agents:
        size = torch.stack([agent[side].tensor() for side in SIZE])
        if not (size[:2] > 0).all():
            raise agent.wrong("a length and a width greater than 0", str(size[:2].tolist()))
        sizes.append(size)
    all_times = torch.cat([torch.zeros(0, dtype=torch.float64), *(track[:, 0] for track in tracks)])
    times: Tensor = all_times.unique()
    states = torch.zeros(len(agents), len(times), 5, dtype=torch.float64)
    seen = torch.zeros(len(agents), len(times), dtype=torch.bool)
    for row, track in enumerate(tracks):
        columns = torch.searchsorted(times, track[:, 0].contiguous())
        states[row, columns] = track[:, 1:]
        seen[row, columns] = True
    types = torch.tensor([AGENT_TYPES.index(agent["type"].text(AGENT_TYPES)) for agent in agents], dtype=torch.int64)
    shape = torch.stack(sizes) if sizes else torch.zeros(0, 3, dtype=torch.float64)
    return Agents(tuple(tokens), types, shape, times, states, seen)


def _lights(value: Field, lanes: dict[str, int]) -> Lights:
    frames = list(value)
    times = _rounded(torch.tensor([frame["t"].number() for frame in frames], dtype=torch.float64))
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
    lanes = scene.map.lanes.ids
    ego = scene.ego
    lights = scene.lights
    agents = scene.agents
    return {
        "name": scene.name,
        "scene_type": "synthetic" if scene.synthetic else "original",
        "map": _map_to_json(scene.map),
        "route": _names(scene.map.roadblocks.ids, scene.route),
        "ego": ego_to_json(ego.times, ego.poses, ego.velocities, ego.accelerations),
        "human_trajectory": None if scene.human is None else scene.human.tolist(),
        "agents": [
            agent_to_json(token, AGENT_TYPES[kind], size, torch.cat([agents.times[seen, None], states[seen]], 1))
            for token, kind, size, states, seen in zip(
                agents.tokens, agents.types.tolist(), agents.sizes.tolist(), agents.states, agents.seen, strict=True
            )
        ],
        "traffic_lights": [
            {"t": time, "red": _names(lanes, red.nonzero()[:, 0]), "green": _names(lanes, green.nonzero()[:, 0])}
            for time, red, green in zip(lights.times.tolist(), lights.red, lights.green, strict=True)
        ],
        **{key: value for key, value in optional.items() if value},
        **scene.extra,
    }


def _map_to_json(road_map: RoadMap) -> dict[str, Any]:
    lanes = road_map.lanes
    blocks = road_map.roadblocks
    limits = [None if limit != limit else limit for limit in lanes.speed_limit.tolist()]  # NaN != NaN
    return {
        "roadblocks": [
            {
                "id": name,
                "connector": bool(blocks.connector[row]),
                **_polygon_to_json(blocks.polygons, row),
                "lanes": _names(lanes.ids, blocks.lanes[row]),
                "incoming": _names(blocks.ids, blocks.incoming[row]),
                "outgoing": _names(blocks.ids, blocks.outgoing[row]),
            }
            for row, name in enumerate(blocks.ids)
        ],
        "lanes": [
            {
                "id": name,
                "connector": bool(lanes.connector[row]),
                "roadblock": blocks.ids[int(lanes.roadblock[row])],
                **_polygon_to_json(lanes.polygons, row),
                "centerline": lanes.centerlines[row].tolist(),
                "speed_limit": limits[row],
                "incoming": _names(lanes.ids, lanes.incoming[row]),
                "outgoing": _names(lanes.ids, lanes.outgoing[row]),
            }
            for row, name in enumerate(lanes.ids)
        ],
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


def _names(ids: Sequence[str], rows: Iterable[Any]) -> list[str]:
    return [ids[int(row)] for row in rows]
