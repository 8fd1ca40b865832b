"""Rotation and translation of a whole scene."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from driving_scenes.scene import Areas, Points, RoadMap, Scene


def moved(scene: Scene, angle: float, shift: tuple[float, float]) -> Scene:
    """Turn a scene to the left about the origin by radians, then shift it by meters."""
    turn = torch.tensor([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]], dtype=torch.float64)

    def points(xy: Tensor) -> Tensor:
        return xy @ turn + torch.tensor(shift, dtype=torch.float64)

    def poses(pose: Tensor) -> Tensor:
        yaw = (pose[..., 2:] + angle + math.pi).remainder(2 * math.pi) - math.pi
        return torch.cat([points(pose[..., :2]), yaw], -1)

    def lines(old_lines: Points) -> Points:
        rings = tuple((row, points(ring)) for row, ring in old_lines.rings)
        return Points(points(old_lines.xy), old_lines.counts, rings)

    def areas(old_areas: Areas) -> Areas:
        return Areas(old_areas.ids, lines(old_areas.polygons))

    old = scene.map
    agents = scene.agents
    states = torch.cat([poses(agents.states[..., :3]), agents.states[..., 3:] @ turn], -1)
    return replace(
        scene,
        map=RoadMap(
            replace(old.lanes, polygons=lines(old.lanes.polygons), centerlines=lines(old.lanes.centerlines)),
            replace(old.roadblocks, polygons=lines(old.roadblocks.polygons)),
            areas(old.intersections),
            areas(old.carparks),
            areas(old.drivable_areas),
        ),
        ego=replace(scene.ego, poses=poses(scene.ego.poses)),
        agents=replace(agents, states=states * agents.seen[..., None]),
        pdm_trajectory=None if scene.pdm_trajectory is None else poses(scene.pdm_trajectory),
        centerline=None if scene.centerline is None else points(scene.centerline),
    )
