"""Second-stage scenes: the world 4 s later, with a perturbed ego."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from driving_scenes.generator.agent import LATER, NOW, Agent, boxes, overlapping
from driving_scenes.generator.curve import Array
from driving_scenes.generator.human_drive import Obstacles, onward
from driving_scenes.generator.road_network import SHOULDER
from driving_scenes.generator.roads import Random
from driving_scenes.generator.site import Site
from driving_scenes.generator.world import World, apart, ego_history, future
from driving_scenes.scene import Scene
from driving_scenes.vehicle import FRONT_LENGTH, LENGTH, REAR_AXLE_TO_CENTER, WIDTH

ROOM = 25.0
"""Meters of road beyond the human at 8 s."""
BEHIND, AHEAD = 0.75, 1.1
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
        agents = apart(world.agents, LATER)
        site = world.site.later()
        return cls(world, site, agents, Obstacles.of(agents, site.path, LATER))

    @property
    def goes_on(self) -> bool:
        return self.site.path.length - float(self.world.later.s[-1]) >= ROOM

    def starts(self, rng: Random, count: int) -> list[Start]:
        """Draw starts, spread from behind to ahead of the human's place at 4 s."""
        edges = np.linspace(BEHIND, AHEAD, count + 1)
        return [self._start(rng, share) for share in rng.uniform(edges[:-1], edges[1:])]

    def scene(self, start: Start, name: str, log: str) -> Scene:
        ego = ego_history(self.site.path, start.s, start.motion, start.left, start.heading)
        return self.world.scene(name, log, replace(self.site, s=start.s), ego, self.agents, first=LATER)

    def recovery(self, start: Start, name: str) -> Scene:
        """A scene whose human returns to the path."""
        ego = ego_history(self.site.path, start.s, start.motion, start.left, start.heading)
        driven = onward(self.site, self.others, start.s, start.motion)
        human = future(self.site.path, driven, start.left, start.heading)
        return self.world.scene(name, name, replace(self.site, s=start.s), ego, self.agents, human, LATER)

    def _start(self, rng: Random, share: float) -> Start:
        """The largest perturbation, toward `share` of the human's way, that lets a driver go on, clear of agents."""
        way = float(self.world.drive.s[-1] - self.world.drive.s[0])
        forward = (share - 1) * way + rng.normal(0, 0.3)
        left, heading = rng.normal(0, 0.4), rng.normal(0, 0.04)
        faster, acceleration = rng.uniform(0.75, 1.2), rng.normal(0, 0.3)
        for size in np.linspace(1, 0, TRIES):
            start = self._perturbed(size * forward, size * left, size * heading, faster**size, size * acceleration)
            if not (self._touches(start) or onward(self.site, self.others, start.s, start.motion).hit.any()):
                break
        return start

    def _perturbed(self, forward: float, left: float, heading: float, faster: float, acceleration: float) -> Start:
        path, (speed, accelerated) = self.site.path, self.world.drive.end
        s = float(self.world.drive.s[-1]) + forward
        stops = path.s[self.site.speeds <= 0]
        if len(stops):
            s = min(s, float(max(stops[0], self.world.drive.s[-1])))
        speed = min(speed * faster, float(np.interp(s, path.s, self.site.speeds)))
        if speed < 0.5:
            speed, acceleration = 0.0, 0.0
        else:
            acceleration = float(np.clip(accelerated + acceleration, -2.0, min(speed / 2, 1.4)))
        trip = self.site.trip
        middle = float(trip.path.project(path.at(s)[None, :2])[0, 1])
        width = self.site.road.network.lanes[trip.lanes[trip.lane_at(s)]].width
        room = max((width - WIDTH) / 2 + SHOULDER - INSIDE, 0.0)
        left = float(np.clip(left, min(-room - middle, 0), max(room - middle, 0)))
        # The car's front stays within the same bounds.
        out = np.clip(left + FRONT_LENGTH * np.sin(heading), min(-room - middle, left), max(room - middle, left))
        return Start(s, (speed, acceleration), left, float(np.arcsin((out - left) / FRONT_LENGTH)))

    def _touches(self, start: Start) -> bool:
        ego: Array = ego_history(self.site.path, start.s, start.motion, start.left, start.heading).poses.numpy().copy()
        ego[:, 0] += REAR_AXLE_TO_CENTER * np.cos(ego[:, 2])
        ego[:, 1] += REAR_AXLE_TO_CENTER * np.sin(ego[:, 2])
        poses, sizes = boxes(self.agents, LATER)
        now = slice(0, NOW + 1)
        size = np.array([LENGTH + 1.0, WIDTH + 0.4])
        return bool(overlapping(ego[None], size, poses[:, now], sizes[:, None]).any())
