"""Second-stage scenes: the world 4 s later, with a perturbed ego."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from driving_scenes.generator.agent import LATER, NOW, Agent, agent_boxes, overlapping
from driving_scenes.generator.curve import Array
from driving_scenes.generator.human_drive import Obstacles, onward
from driving_scenes.generator.road_network import SHOULDER
from driving_scenes.generator.roads import Random
from driving_scenes.generator.site import Site
from driving_scenes.generator.world import World, ego_history, human_future, keep_apart
from driving_scenes.scene import Scene
from driving_scenes.vehicle import FRONT_LENGTH, LENGTH, REAR_AXLE_TO_CENTER, WIDTH

ROOM = 25.0
"""Meters of road beyond the human at 8 s."""
BEHIND = 0.75
AHEAD = 1.1
"""Bounds on an ego's share of the human's way."""
TRIES = 8
"""Perturbations tried, from large to none."""
INSIDE = 0.15
"""Meters between an ego and the edge of its lane."""


@dataclass(frozen=True)
class Start:
    """An ego's start, relative to the site's path."""

    s: float  # distance
    motion: tuple[float, float]  # speed and acceleration
    left: float  # meters
    heading: float  # radians to the left


@dataclass(frozen=True)
class Continuation:
    """A world from 2.5 s on."""

    world: World
    site: Site  # from 4 s on
    agents: list[Agent]  # no two touch from 2.5 s on
    others: Obstacles  # the agents, from 4 s on

    @classmethod
    def of(cls, world: World) -> Continuation:
        agents = keep_apart(world.agents, LATER)
        site = world.site.later()
        return cls(world, site, agents, Obstacles.of(agents, site.path, LATER))

    @property
    def goes_on(self) -> bool:
        return self.site.path.length - float(self.world.later.s[-1]) >= ROOM

    def starts(self, rng: Random, count: int) -> list[Start]:
        """Draw starts, spread from behind to ahead of the human's place at 4 s."""
        edges = np.linspace(BEHIND, AHEAD, count + 1)
        return [self._draw_start(rng, share) for share in rng.uniform(edges[:-1], edges[1:])]

    def scene(self, start: Start, name: str, log: str) -> Scene:
        ego = ego_history(self.site.path, start.s, start.motion, start.left, start.heading)
        return self.world.scene(name, log, replace(self.site, s=start.s), ego, self.agents, first=LATER)

    def recovery(self, start: Start, name: str) -> Scene:
        """A scene whose human returns to the path."""
        ego = ego_history(self.site.path, start.s, start.motion, start.left, start.heading)
        driven = onward(self.site, self.others, start.s, start.motion)
        human = human_future(self.site.path, driven, start.left, start.heading)
        return self.world.scene(name, name, replace(self.site, s=start.s), ego, self.agents, human, LATER)

    def _draw_start(self, rng: Random, share: float) -> Start:
        """The largest perturbation, toward `share` of the human's way, that lets a driver go on, clear of agents."""
        way = float(self.world.drive.s[-1] - self.world.drive.s[0])
        forward = (share - 1) * way + rng.normal(0, 0.3)
        left = rng.normal(0, 0.4)
        heading = rng.normal(0, 0.04)
        faster = rng.uniform(0.75, 1.2)
        acceleration = rng.normal(0, 0.3)
        for size in np.linspace(1, 0, TRIES):
            start = self._perturbed_start(
                forward=size * forward,
                left=size * left,
                heading=size * heading,
                faster=faster**size,
                acceleration=size * acceleration,
            )
            if self._touches_agents(start):
                continue
            if not onward(self.site, self.others, start.s, start.motion).hit.any():
                break
        return start

    def _perturbed_start(
        self, forward: float, left: float, heading: float, faster: float, acceleration: float
    ) -> Start:
        """A start beside the human's at 4 s, within the lane, the allowed speed and usual accelerations.

        Args:
            forward: meters further along the path.
            left: meters to the left of the path.
            heading: radians to the left of the path's direction.
            faster: factor of the human's speed.
            acceleration: m/s² more than the human's.
        """
        s = self._before_a_stop(float(self.world.drive.s[-1]) + forward)
        motion = self._perturbed_motion(s, faster, acceleration)
        right_edge, left_edge = self._lane_edges(s)
        left = float(np.clip(left, min(right_edge, 0), max(left_edge, 0)))
        # The car's front stays within the same bounds.
        front = left + FRONT_LENGTH * np.sin(heading)
        front = np.clip(front, min(right_edge, left), max(left_edge, left))
        heading = float(np.arcsin((front - left) / FRONT_LENGTH))
        return Start(s, motion, left, heading)

    def _before_a_stop(self, s: float) -> float:
        """A distance along the path, but not beyond where a car must stop, unless the human is beyond."""
        stops = self.site.path.s[self.site.speeds <= 0]
        if not len(stops):
            return s
        return min(s, float(max(stops[0], self.world.drive.s[-1])))

    def _perturbed_motion(self, s: float, faster: float, acceleration: float) -> tuple[float, float]:
        """Speed and acceleration at a distance along the path; see `_perturbed_start`."""
        human_speed, human_acceleration = self.world.drive.end
        allowed = float(np.interp(s, self.site.path.s, self.site.speeds))
        speed = min(human_speed * faster, allowed)
        if speed < 0.5:
            return 0.0, 0.0
        most = min(speed / 2, 1.4)
        return speed, float(np.clip(human_acceleration + acceleration, -2.0, most))

    def _lane_edges(self, s: float) -> tuple[float, float]:
        """The farthest an ego may be at a distance along the path: meters to the left, right edge first."""
        trip = self.site.trip
        # Meters by which the path is left of the lane's middle.
        middle = float(trip.path.project(self.site.path.at(s)[None, :2])[0, 1])
        width = self.site.road.network.lanes[trip.lanes[trip.lane_at(s)]].width
        room = max((width - WIDTH) / 2 + SHOULDER - INSIDE, 0.0)
        return -room - middle, room - middle

    def _touches_agents(self, start: Start) -> bool:
        ego: Array = ego_history(self.site.path, start.s, start.motion, start.left, start.heading).poses.numpy().copy()
        ego[:, 0] += REAR_AXLE_TO_CENTER * np.cos(ego[:, 2])
        ego[:, 1] += REAR_AXLE_TO_CENTER * np.sin(ego[:, 2])
        poses, sizes = agent_boxes(self.agents, LATER)
        now = slice(0, NOW + 1)
        size = np.array([LENGTH + 1.0, WIDTH + 0.4])
        return bool(overlapping(ego[None], size, poses[:, now], sizes[:, None]).any())
