"""Small scenes made by hand, in the file format, for tests."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from driving_scenes.scene import Agents, EgoHistory, Points, RoadMap, Scene
from driving_scenes.scene_file import scene_from_json

WIDTH = 3.5
"""Of a lane."""
SPEED = 8.0
"""Of the ego, m/s."""
TIMES = [step / 2 for step in range(-3, 9)]


def rectangle(low_x: float, low_y: float, high_x: float, high_y: float) -> list[list[float]]:
    return [[low_x, low_y], [high_x, low_y], [high_x, high_y], [low_x, high_y]]


def agent(
    token: str,
    x: float,
    y: float,
    yaw: float = 0.0,
    speed: float = 0.0,
    kind: str = "vehicle",
    size: tuple[float, float] = (4.6, 1.9),
    times: list[float] | None = None,
) -> dict[str, Any]:
    """One that is at x, y at t = 0 and goes straight on."""
    velocity = [speed * math.cos(yaw), speed * math.sin(yaw)]
    states = [[t, x + t * velocity[0], y + t * velocity[1], yaw, *velocity] for t in times or TIMES]
    return {"token": token, "type": kind, "length": size[0], "width": size[1], "height": 1.6, "states": states}


def straight_road(
    agents: list[dict[str, Any]] | None = None, speed: float = SPEED, y: float = -WIDTH / 2, **fields: Any
) -> Scene:
    """Two lanes eastward (their centers at y = -1.75 and 1.75) and one westward (5.25); the ego goes east from x = 0.

    Args:
        agents: see `agent`.
        speed: of the ego.
        y: of the ego.
        fields: of the file, instead of those made here.
    """
    lanes, blocks = [], []
    for block, centers, forward in (("east", (-WIDTH / 2, WIDTH / 2), True), ("west", (3 * WIDTH / 2,), False)):
        names = [f"{block}{i}" for i in range(len(centers))]
        for name, center in zip(names, centers, strict=True):
            line = [[float(x), center] for x in range(-50, 151, 5)]
            lanes.append(
                {
                    "id": name,
                    "connector": False,
                    "roadblock": block,
                    "polygon": rectangle(-50, center - WIDTH / 2, 150, center + WIDTH / 2),
                    "centerline": line if forward else line[::-1],
                    "speed_limit": 10.0,
                    "incoming": [],
                    "outgoing": [],
                }
            )
        outline = rectangle(-50, centers[0] - WIDTH / 2, 150, centers[-1] + WIDTH / 2)
        blocks.append(
            {"id": block, "connector": False, "polygon": outline, "lanes": names, "incoming": [], "outgoing": []}
        )
    return _scene({"roadblocks": blocks, "lanes": lanes}, ["east"], [0.0, y, 0.0], speed, agents or [], fields)


def crossing(
    agents: list[dict[str, Any]] | None = None, red: bool = True, speed: float = SPEED, **fields: Any
) -> Scene:
    """A road eastward (its lane's center at y = -1.75) through a crossing from x = 20 to 34; the ego is at x = 0.

    Args:
        agents: see `agent`.
        red: the light is red until 3 s.
        speed: of the ego.
        fields: of the file, instead of those made here.
    """
    parts = [("before", -50, 20, False), ("through", 20, 34, True), ("after", 34, 120, False)]
    names = [name for name, *_ in parts]
    lanes, blocks = [], []
    for i, (name, low, high, connector) in enumerate(parts):
        near = {"incoming": names[max(i - 1, 0) : i], "outgoing": names[i + 1 : i + 2]}
        outline = rectangle(low, -WIDTH, high, 0)
        line = [[low + (high - low) * step / 20, -WIDTH / 2] for step in range(21)]
        lanes.append(
            {
                "id": name,
                "connector": connector,
                "roadblock": name,
                "polygon": outline,
                "centerline": line,
                "speed_limit": 10.0,
                **near,
            }
        )
        blocks.append({"id": name, "connector": connector, "polygon": outline, "lanes": [name], **near})
    lights = [{"t": t, "red": ["through"] if red and t < 3 else [], "green": []} for t in TIMES if t >= 0]
    return _scene(
        {
            "roadblocks": blocks,
            "lanes": lanes,
            "intersections": [{"id": "crossing", "polygon": rectangle(20, -8.75, 34, 5.25)}],
        },
        names,
        [0.0, -WIDTH / 2, 0.0],
        speed,
        agents or [],
        {"traffic_lights": lights, **fields},
    )


def _scene(
    road_map: dict[str, Any],
    route: list[str],
    pose: list[float],
    speed: float,
    agents: list[dict[str, Any]],
    fields: dict[str, Any],
) -> Scene:
    content = {
        "name": "made by hand",
        "scene_type": "original",
        "map": road_map,
        "route": route,
        "ego": [
            {
                "t": t,
                "pose": [pose[0] + speed * t, pose[1], pose[2]],
                "velocity": [speed, 0.0],
                "acceleration": [0.0, 0.0],
            }
            for t in TIMES[:4]
        ],
        "human_trajectory": straight(speed).tolist(),
        "agents": agents,
        "traffic_lights": [],
    }
    return scene_from_json(content | fields, "made by hand")


def straight(speed: float = SPEED, acceleration: float = 0.0, left: float = 0.0) -> Tensor:
    """``[8, 3]`` poses of a candidate that goes straight on, and moves to the left within 2 s."""
    t = torch.arange(1, 9, dtype=torch.float64) / 2
    driven = t.clamp(max=speed / -acceleration) if acceleration < 0 else t
    x = speed * driven + acceleration / 2 * driven**2
    y = left * (t / 2).clamp(max=1)
    path = torch.stack([x, y], 1)
    step = path.diff(dim=0, prepend=path.new_zeros(1, 2))
    return torch.cat([path, torch.atan2(step[:, 1], step[:, 0].clamp(min=0.1))[:, None]], 1)


def moved(scene: Scene, x: float, y: float, yaw: float) -> Scene:
    """The same scene elsewhere: turned around the origin, then shifted."""

    def points(xy: Tensor) -> Tensor:
        return vectors(xy) + xy.new_tensor([x, y])

    def vectors(xy: Tensor) -> Tensor:
        cos, sin = math.cos(yaw), math.sin(yaw)
        return torch.stack([cos * xy[..., 0] - sin * xy[..., 1], sin * xy[..., 0] + cos * xy[..., 1]], -1)

    def poses(pose: Tensor) -> Tensor:
        return torch.cat([points(pose[..., :2]), pose[..., 2:3] + yaw], -1)

    def shapes(rows: Points) -> Points:
        return Points(points(rows.xy), rows.counts, tuple((row, points(ring)) for row, ring in rows.rings))

    road_map, agents, ego = scene.map, scene.agents, scene.ego
    return replace(
        scene,
        map=RoadMap(
            replace(
                road_map.lanes, polygons=shapes(road_map.lanes.polygons), centerlines=shapes(road_map.lanes.centerlines)
            ),
            replace(road_map.roadblocks, polygons=shapes(road_map.roadblocks.polygons)),
            *(
                replace(areas, polygons=shapes(areas.polygons))
                for areas in (road_map.intersections, road_map.carparks, road_map.drivable_areas)
            ),
        ),
        ego=EgoHistory(ego.times, poses(ego.poses), ego.velocities, ego.accelerations),
        agents=Agents(
            agents.tokens,
            agents.types,
            agents.sizes,
            agents.times,
            torch.cat([poses(agents.states[..., :3]), vectors(agents.states[..., 3:])], -1) * agents.seen[..., None],
            agents.seen,
        ),
        pdm_trajectory=None if scene.pdm_trajectory is None else poses(scene.pdm_trajectory),
        centerline=None if scene.centerline is None else points(scene.centerline),
    )
