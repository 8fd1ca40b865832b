"""Reactive traffic of docs/navsim_score_scenes.md §10, a row and a vehicle after the other, with shapely's polygons."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import shapely
import torch
from shapely import LineString, Polygon, STRtree

from driving_scenes.scene import Scene
from driving_scenes.vehicle import LENGTH, WIDTH
from navsim_score.traffic.idm.rails import Rail, find_rails


def box(pose: np.ndarray, length: float, width: float) -> Polygon:
    forward = np.array([np.cos(pose[2]), np.sin(pose[2])])
    left = np.array([-forward[1], forward[0]])
    signs = ((1, 1), (-1, 1), (-1, -1), (1, -1))
    return Polygon([pose[:2] + a * length / 2 * forward + b * width / 2 * left for a, b in signs])


@dataclass(eq=False)
class Vehicle:
    rail: Rail
    length: float
    width: float
    progress: float
    speed: float
    shape: Polygon

    @property
    def kept(self) -> float:
        return float(np.clip(self.progress, self.rail.distances[0], self.rail.distances[-1]))

    @property
    def pose(self) -> np.ndarray:
        rail = self.rail
        columns = (rail.points[:, 0], rail.points[:, 1], rail.yaws)
        return np.array([np.interp(self.kept, rail.distances, column) for column in columns])

    def part(self, begin: float, end: float) -> Polygon:
        at = self.rail.distances
        begin, end = np.clip([begin, end], at[0], at[-1])
        if begin == at[-1]:
            line = LineString(self.rail.points[-2:])
        else:
            inside = (at > begin) & (at < end)
            ends = [[np.interp(d, at, self.rail.points[:, axis]) for axis in (0, 1)] for d in (begin, end)]
            line = LineString([ends[0], *self.rail.points[inside], ends[1]])
        return line.buffer(self.width / 2, cap_style="flat")

    def move(self, gap: float, leader_speed: float) -> None:
        v = self.speed
        wanted = 1.0 + 1.5 * v + v * (v - leader_speed) / (2 * np.sqrt(1.0 * 2.0))
        change = 1.0 * (1 - (v / self.rail.target_speed) ** 4 - (wanted / max(gap, 1.0)) ** 2)
        self.progress += 0.1 * v
        self.speed = max(v + 0.1 * min(max(-2.0, change), 1.0), 0.0)
        strip = self.part(self.progress - self.length / 2, self.progress + self.length / 2 + 1.5 * self.speed)
        self.shape = shapely.union_all([strip, box(self.pose, self.length, self.width)])


def reactive(scene: Scene, states: np.ndarray) -> dict[int, np.ndarray]:
    """Poses ``[41, 3]`` of the vehicles on rails, by agent; NaN once they are too far from the ego's states."""
    vehicles = {}
    for rail in find_rails(scene).rails:
        length, width = scene.agents.sizes[rail.agent, :2].tolist()
        shape = box(rail.pose, length, width)
        vehicles[rail.agent] = Vehicle(rail, length, width, rail.progress, rail.speed, shape)
    poses = {agent: np.full((41, 3), np.nan) for agent in vehicles}
    for step in range(40):
        ego, yaw, ego_speed = states[step], states[step, 2], float(np.hypot(*states[step, 3:5]))
        ego_box = box(ego[:3], LENGTH, WIDTH)
        for agent in [a for a, v in vehicles.items() if np.hypot(*(v.pose[:2] - ego[:2])) > 100]:
            del vehicles[agent]
        for vehicle in vehicles.values():
            corridor = vehicle.part(vehicle.kept, np.inf)
            others = [other for other in vehicles.values() if other is not vehicle and other.shape.intersects(corridor)]
            shapes = [other.shape for other in others]
            if ego_box.intersects(corridor):
                shapes.append(ego_box)
            if not shapes:
                vehicle.move(vehicle.rail.distances[-1] - vehicle.progress - vehicle.length / 2, 0.0)
                continue
            nearest = int(STRtree(shapes).nearest(vehicle.shape))
            if nearest < len(others):
                speed, heading = others[nearest].speed, others[nearest].pose[2]
            else:
                speed, heading = ego_speed, yaw
            vehicle.move(vehicle.shape.distance(shapes[nearest]), speed * np.cos(heading - vehicle.pose[2]))
        for agent, vehicle in vehicles.items():
            poses[agent][step + 1] = vehicle.pose
    return poses


def worst(scene: Scene, states: torch.Tensor, poses: torch.Tensor, present: torch.Tensor) -> float:
    """Meters between the oracle's vehicles and those of traffic ``poses [A, 41, 3]``, ``present [A, 41]``, at most.

    Infinite where not the same vehicles are present.
    """
    most = 0.0
    for agent, expected in reactive(scene, states.numpy()).items():
        there = ~np.isnan(expected[1:, 0])
        if (there != present[agent, 1:].numpy()).any():
            return np.inf
        if there.any():
            most = max(most, float(np.abs(poses[agent, 1:].numpy() - expected[1:])[there, :2].max()))
    return most
