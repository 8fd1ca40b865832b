"""Small scenes made by hand, in the file format, for tests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from driving_scenes.scene import Scene
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


def lane(
    name: str,
    block: str,
    polygon: Any,
    line: Any,
    connector: bool = False,
    limit: float | None = 10.0,
    before: Sequence[str] = (),
    after: Sequence[str] = (),
) -> dict[str, Any]:
    """A lane of a roadblock, between the lanes of these names."""
    place = {"roadblock": block, "polygon": polygon, "centerline": line, "speed_limit": limit}
    return {"id": name, "connector": connector, **place, "incoming": [*before], "outgoing": [*after]}


def road_map(lanes: list[dict[str, Any]], **areas: Any) -> dict[str, Any]:
    """A map whose roadblocks have one lane each, of the same outline."""
    block_of = {lane["id"]: lane["roadblock"] for lane in lanes}
    blocks = []
    for lane in lanes:
        ends = {way: [block_of[name] for name in lane[way]] for way in ("incoming", "outgoing")}
        same = {key: lane[key] for key in ("connector", "polygon")}
        blocks.append({"id": lane["roadblock"], "lanes": [lane["id"]], **same, **ends})
    return {"roadblocks": blocks, "lanes": lanes, **areas}


def straight_road(
    agents: list[dict[str, Any]] | None = None, speed: float = SPEED, y: float = -WIDTH / 2, **fields: Any
) -> Scene:
    """Two lanes eastward (their centers at y = -1.75 and 1.75) and one westward (5.25); the ego goes east from x = 0.

    `fields` of the file stand instead of those made here.
    """
    lanes, blocks = [], []
    for block, centers, forward in (("east", (-WIDTH / 2, WIDTH / 2), True), ("west", (3 * WIDTH / 2,), False)):
        names = [f"{block}{i}" for i in range(len(centers))]
        for name, center in zip(names, centers, strict=True):
            line = [[float(x), center] for x in range(-50, 151, 5)]
            outline = rectangle(-50, center - WIDTH / 2, 150, center + WIDTH / 2)
            lanes.append(lane(name, block, outline, line if forward else line[::-1]))
        outline = rectangle(-50, centers[0] - WIDTH / 2, 150, centers[-1] + WIDTH / 2)
        ends = {"incoming": [], "outgoing": []}
        blocks.append({"id": block, "connector": False, "polygon": outline, "lanes": names, **ends})
    return _scene({"roadblocks": blocks, "lanes": lanes}, ["east"], y, speed, agents, fields)


def crossing(
    agents: list[dict[str, Any]] | None = None, red: bool = True, speed: float = SPEED, **fields: Any
) -> Scene:
    """A road eastward (its lane's center at y = -1.75) through a crossing from x = 20 to 34; the ego is at x = 0.

    The light is red until 3 s, or never.
    """
    parts = [("before", -50, 20, False), ("through", 20, 34, True), ("after", 34, 120, False)]
    names = [name for name, *_ in parts]
    lanes = []
    for i, (name, low, high, connector) in enumerate(parts):
        line = [[low + (high - low) * step / 20, -WIDTH / 2] for step in range(21)]
        near = {"before": names[max(i - 1, 0) : i], "after": names[i + 1 : i + 2]}
        lanes.append(lane(name, name, rectangle(low, -WIDTH, high, 0), line, connector, **near))
    area = {"id": "crossing", "polygon": rectangle(20, -8.75, 34, 5.25)}
    lights = [{"t": t, "red": ["through"] if red and t < 3 else [], "green": []} for t in TIMES if t >= 0]
    fields = {"traffic_lights": lights, **fields}
    return _scene(road_map(lanes, intersections=[area]), names, -WIDTH / 2, speed, agents, fields)


def _scene(
    of: dict[str, Any],
    route: list[str],
    y: float,
    speed: float,
    agents: list[dict[str, Any]] | None,
    fields: dict[str, Any],
) -> Scene:
    motion = {"velocity": [speed, 0.0], "acceleration": [0.0, 0.0]}
    content = {
        "name": "made by hand",
        "scene_type": "original",
        "map": of,
        "route": route,
        "ego": [{"t": t, "pose": [speed * t, y, 0.0], **motion} for t in TIMES[:4]],
        "human_trajectory": straight(speed).tolist(),
        "agents": agents or [],
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
