"""The devkit's scenes in the scene file format."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import shapely

from driving_scenes.errors import InputError
from driving_scenes.json_fields import SceneError

INTERVAL = 0.5
FUTURE = 8
PLAN = 41
"""Poses of the expert's plan at 10 Hz, of 51 in a cache."""
MAP_RADIUS = 100.0
"""Meters; half the side of a square around the ego, as in metric caches. The route's roads are always included."""
SYNTHETIC_TOKEN = 17
"""Length of a synthetic scene's token, as in the devkit."""
COMMANDS = ("left", "straight", "right", "unknown")


def scene_content(token: str, scene: Any, scenario: Any, layers: Any) -> dict[str, Any]:
    """Convert navsim's `Scene`, `NavSimScenario` and nuPlan's `SemanticMapLayer` for `scene_from_json`.

    Raises:
        SceneError: the route isn't in the map.
    """
    synthetic = len(token) == SYNTHETIC_TOKEN
    history = scene.scene_metadata.num_history_frames
    command = scene.frames[history - 1].ego_status.driving_command
    road_map = _map_content(token, scenario, layers)
    lanes = {lane["id"] for lane in road_map["lanes"]}
    ego = []
    for step in range(1 - history, 1):
        ego.append(ego_content(scenario.get_ego_state_at_iteration(step), step * INTERVAL))
    human = None
    if not synthetic:
        human = np.asarray(scene.get_future_trajectory(FUTURE).poses).tolist()
    return {
        "name": token,
        "scene_type": "synthetic" if synthetic else "original",
        "map": road_map,
        "route": list(dict.fromkeys(str(block) for block in scenario.get_route_roadblock_ids())),
        "ego": ego,
        "human_trajectory": human,
        "agents": agents_content(_tracked_frames(scenario, history)),
        "traffic_lights": [_lights_at(scenario, step, lanes) for step in range(FUTURE + 1)],
        "log": scene.scene_metadata.log_name,
        "intent": COMMANDS[int(np.argmax(command))],
    }


def private_content(token: str, frames: list[dict[str, Any]]) -> dict[str, Any]:
    """Convert the history of a scene without annotations, of the private test: it can be answered, not scored."""
    return {
        "name": token,
        "scene_type": "synthetic" if len(token) == SYNTHETIC_TOKEN else "original",
        "map": {"lanes": [], "roadblocks": []},
        "route": [],
        "ego": [_ego_of(frame, (step + 1 - len(frames)) * INTERVAL) for step, frame in enumerate(frames)],
        "agents": [],
        "traffic_lights": [],
        "log": frames[-1]["log_name"],
        # Without a route, an unknown command has no other source.
        "intent": COMMANDS[int(np.argmax(frames[-1]["driving_command"]))].replace("unknown", "straight"),
    }


def _ego_of(frame: dict[str, Any], time: float) -> dict[str, Any]:
    x, y = frame["ego2global_translation"][:2]
    w, i, j, k = frame["ego2global_rotation"]
    yaw = math.atan2(2 * (w * k - i * j), 1 - 2 * (j * j + k * k))  # pyquaternion's, of which the devkit takes it
    motion = [float(value) for value in frame["ego_dynamic_state"]]
    return {"t": time, "pose": [float(x), float(y), yaw], "velocity": motion[:2], "acceleration": motion[2:]}


def plan_content(cache: Any) -> dict[str, Any]:
    """The field `overrides`: the expert's plan and the centerline.

    Raises:
        InputError: the cache is of NAVSIM 1, whose expert is another one.
    """
    if not hasattr(cache, "past_human_trajectory"):
        raise InputError(
            "Expected metric caches of NAVSIM 2, but got one without `past_human_trajectory`, as NAVSIM 1 writes them, "
            "try run_metric_caching.sh of the devkit 2."
        )
    states = cache.trajectory.get_sampled_trajectory()[:PLAN]
    return {
        "pdm_trajectory": [_pose_of(state.rear_axle) for state in states],
        "centerline": [[state.x, state.y] for state in cache.centerline.discrete_path],
    }


def _pose_of(state: Any) -> list[float]:
    return [float(state.x), float(state.y), float(state.heading)]


def ego_content(state: Any, time: float) -> dict[str, Any]:
    """Convert an `EgoState`; ``time`` in seconds after t = 0."""
    motion = state.dynamic_car_state
    velocity = motion.rear_axle_velocity_2d
    acceleration = motion.rear_axle_acceleration_2d
    return {
        "t": time,
        "pose": _pose_of(state.rear_axle),
        "velocity": [float(velocity.x), float(velocity.y)],
        "acceleration": [float(acceleration.x), float(acceleration.y)],
    }


def _tracked_frames(scenario: Any, history: int) -> Iterator[tuple[float, Any]]:
    for step in (*range(FUTURE + 1), *range(1 - history, 0)):  # the first frame sets the size
        try:
            yield step * INTERVAL, scenario.get_tracked_objects_at_iteration(step).tracked_objects
        except AssertionError:  # the future of a synthetic scene may be short
            continue


def agents_content(frames: Iterable[tuple[float, Any]]) -> list[dict[str, Any]]:
    """All agents, by time and `TrackedObjects`; each with the size of the first frame that has it."""
    agents: dict[str, dict[str, Any]] = {}
    for time, objects in frames:
        for item in objects:
            token = str(item.track_token)
            if token not in agents:
                kind = item.tracked_object_type.name.lower()
                agents[token] = {
                    "token": token,
                    "type": "vehicle" if kind == "ego" else kind,
                    "length": float(item.box.length),
                    "width": float(item.box.width),
                    "height": float(item.box.height),
                    "states": [],
                }
            velocity = [0.0, 0.0]  # static objects have none
            if getattr(item, "velocity", None) is not None:
                velocity = [float(item.velocity.x), float(item.velocity.y)]
            agents[token]["states"].append([time, *_pose_of(item.center), *velocity])
    for agent in agents.values():
        agent["states"].sort()
    return list(agents.values())


def _lights_at(scenario: Any, step: int, lanes: set[str]) -> dict[str, Any]:
    lights: dict[str, Any] = {"t": step * INTERVAL, "red": [], "green": []}
    for light in scenario.get_traffic_light_status_at_iteration(step):
        color = light.status.name.lower()
        lane = str(light.lane_connector_id)
        if color in lights and lane in lanes:
            lights[color].append(lane)
    return lights


def _map_content(token: str, scenario: Any, layers: Any) -> dict[str, Any]:
    """Roads, intersections and carparks near the ego; without drivable areas, as in the devkit."""
    api = scenario.map_api
    kinds = (layers.ROADBLOCK, layers.ROADBLOCK_CONNECTOR, layers.INTERSECTION, layers.CARPARK_AREA)
    near = api.get_proximal_map_objects(scenario.initial_ego_state.center.point, MAP_RADIUS, list(kinds))
    blocks = {}
    for layer in kinds[:2]:
        for block in near[layer]:
            blocks[str(block.id)] = (block, layer == layers.ROADBLOCK_CONNECTOR)
    for name in scenario.get_route_roadblock_ids():
        for layer in kinds[:2]:
            block = api.get_map_object(name, layer)
            if block is not None:
                blocks.setdefault(str(name), (block, layer == layers.ROADBLOCK_CONNECTOR))
        if str(name) not in blocks:
            raise SceneError(f"{token}: route: Expected a roadblock of the map, but got '{name}'.")
    lanes = {}
    for name, (block, connector) in blocks.items():
        for lane in block.interior_edges:
            lanes[str(lane.id)] = (lane, name, connector)
    road_map: dict[str, Any] = {"roadblocks": [], "lanes": []}
    for name, (block, connector) in blocks.items():
        road_map["roadblocks"].append(
            {
                "id": name,
                "connector": connector,
                **polygon_content(block.polygon),
                "lanes": [str(lane.id) for lane in block.interior_edges],
                "incoming": _known_ids(block.incoming_edges, blocks),
                "outgoing": _known_ids(block.outgoing_edges, blocks),
            }
        )
    for name, (lane, block_name, connector) in lanes.items():
        road_map["lanes"].append(
            {
                "id": name,
                "connector": connector,
                "roadblock": block_name,
                **polygon_content(lane.polygon),
                **lane_content(lane),
                "incoming": _known_ids(lane.incoming_edges, lanes),
                "outgoing": _known_ids(lane.outgoing_edges, lanes),
            }
        )
    road_map["intersections"] = [_area_content(area) for area in near[layers.INTERSECTION]]
    road_map["carparks"] = [_area_content(area) for area in near[layers.CARPARK_AREA]]
    return road_map


def _area_content(area: Any) -> dict[str, Any]:
    return {"id": str(area.id), **polygon_content(area.polygon)}


def lane_content(lane: Any) -> dict[str, Any]:
    """The fields `centerline` and `speed_limit` of nuPlan's lane."""
    limit = lane.speed_limit_mps
    return {
        "centerline": [[float(state.x), float(state.y)] for state in lane.baseline_path.discrete_path],
        "speed_limit": None if limit is None else float(limit),
    }


def polygon_content(shape: Any) -> dict[str, Any]:
    """The fields `polygon` and `holes` of a shapely polygon, without repeated vertices.

    A MultiPolygon's further parts are further rings: `holes` has every ring but the first. A point inside two parts is
    outside, as it is for the devkit.

    Raises:
        SceneError: the shape has no area.
    """
    rings = []
    for part in shapely.get_parts(shape):
        if part.geom_type == "Polygon" and not part.is_empty:
            rings += [part.exterior, *part.interiors]
    if not rings:
        raise SceneError(f"Expected a polygon of the map to have an area, but got {shapely.to_wkt(shape)[:80]}.")
    first, *further = [_ring_vertices(ring) for ring in rings]
    content: dict[str, Any] = {"polygon": first}
    if further:
        content["holes"] = further
    return content


def _ring_vertices(ring: Any) -> list[list[float]]:
    points = [[float(x), float(y)] for x, y, *_ in ring.coords]
    return [point for point, following in pairwise(points) if point != following]


def _known_ids(edges: Any, among: dict[str, Any]) -> list[str]:
    return [str(edge.id) for edge in edges if str(edge.id) in among]
