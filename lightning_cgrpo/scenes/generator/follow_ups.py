"""Scenes of the second stage: the same world 4 s later, with the ego where it could have come, not quite as it should.

As NAVSIM's pseudo-simulation has them (docs/navsim_score.md §9): perturbed in place, direction and speed, and without a
human.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from lightning_cgrpo.scenes.generator.human import Obstacles, onward
from lightning_cgrpo.scenes.generator.motion import LATER, NOW, Agent, boxes, overlapping
from lightning_cgrpo.scenes.generator.network import SHOULDER
from lightning_cgrpo.scenes.generator.paths import Array
from lightning_cgrpo.scenes.generator.roads import Random
from lightning_cgrpo.scenes.generator.scenes import World, apart, ego_history
from lightning_cgrpo.scenes.generator.stage import Stage
from lightning_cgrpo.scenes.scene import Scene
from lightning_cgrpo.scenes.vehicle import FRONT_LENGTH, LENGTH, REAR_AXLE_TO_CENTER, WIDTH

ROOM = 25.0
"""Meters of road that there must be beyond where the human is at 8 s."""
BEHIND, AHEAD = 0.75, 1.1
"""Shares of the human's way within which an ego has come."""
TRIES = 8
"""Perturbations that are tried for a start, smaller and smaller, the last one none."""
INSIDE = 0.15
"""Meters by which an ego stays inside of where it may drive, at least."""


@dataclass(frozen=True)
class Start:
    """Where an ego begins.

    Args:
        s: distance along the stage's path.
        motion: speed and acceleration along it.
        left: meters to the left of it.
        heading: radians to the left of its direction.
    """

    s: float
    motion: tuple[float, float]
    left: float
    heading: float


@dataclass(frozen=True)
class Continuation:
    """A world from 2.5 s on.

    Args:
        world: as it is until then.
        stage: from 4 s on.
        agents: those that touch no other one from then on.
        others: the same, for who drives along the stage's path.
    """

    world: World
    stage: Stage
    agents: list[Agent]
    others: Obstacles

    @classmethod
    def of(cls, world: World) -> Continuation:
        agents = apart(world.agents, LATER)
        stage = world.stage.later()
        return cls(world, stage, agents, Obstacles.of(agents, stage.path, LATER))

    @property
    def goes_on(self) -> bool:
        """Whether the map doesn't end too early."""
        return self.stage.path.length - float(self.world.later.s[-1]) >= ROOM

    def starts(self, rng: Random, count: int) -> list[Start]:
        """Draw some, spread from behind to ahead of where the human is."""
        edges = np.linspace(BEHIND, AHEAD, count + 1)
        return [self._start(rng, share) for share in rng.uniform(edges[:-1], edges[1:])]

    def scene(self, start: Start, name: str, log: str) -> Scene:
        """The one of a start."""
        ego = ego_history(self.stage.path, start.s, start.motion, start.left, start.heading)
        return self.world.scene(name, log, replace(self.stage, s=start.s), ego, self.agents, first=LATER)

    def _start(self, rng: Random, share: float) -> Start:
        """The largest perturbation of those drawn from which somebody drives on without coming close to anyone."""
        way = float(self.world.drive.s[-1] - self.world.drive.s[0])
        forward = (share - 1) * way + rng.normal(0, 0.3)
        left, heading = rng.normal(0, 0.4), rng.normal(0, 0.04)
        faster, acceleration = rng.uniform(0.75, 1.2), rng.normal(0, 0.3)
        for size in np.linspace(1, 0, TRIES):
            start = self._perturbed(size * forward, size * left, size * heading, faster**size, size * acceleration)
            if self._can_go_on(start):
                break
        return start

    def _perturbed(self, forward: float, left: float, heading: float, faster: float, acceleration: float) -> Start:
        path, (speed, accelerated) = self.stage.path, self.world.drive.end
        s = float(self.world.drive.s[-1]) + forward
        stops = path.s[self.stage.speeds <= 0]
        if len(stops):
            s = min(s, float(max(stops[0], self.world.drive.s[-1])))
        speed = min(speed * faster, float(np.interp(s, path.s, self.stage.speeds)))
        if speed < 0.5:
            speed, acceleration = 0.0, 0.0
        else:
            acceleration = float(np.clip(accelerated + acceleration, -2.0, min(speed / 2, 1.4)))
        trip = self.stage.trip
        middle = float(trip.path.project(path.at(s)[None, :2])[0, 1])
        width = self.stage.road.network.lanes[trip.lanes[trip.lane_at(s)]].width
        room = max((width - WIDTH) / 2 + SHOULDER - INSIDE, 0.0)
        left = float(np.clip(left, min(-room - middle, 0), max(room - middle, 0)))
        # The car's front is not to be farther out than its rear may be.
        out = np.clip(left + FRONT_LENGTH * np.sin(heading), min(-room - middle, left), max(room - middle, left))
        return Start(s, (speed, acceleration), left, float(np.arcsin((out - left) / FRONT_LENGTH)))

    def _can_go_on(self, start: Start) -> bool:
        return not (self._touches(start) or onward(self.stage, self.others, start.s, start.motion).hit.any())

    def _touches(self, start: Start) -> bool:
        """Whether the ego, then and before, is where another is."""
        own: Array = ego_history(self.stage.path, start.s, start.motion, start.left, start.heading).poses.numpy().copy()
        own[:, 0] += REAR_AXLE_TO_CENTER * np.cos(own[:, 2])
        own[:, 1] += REAR_AXLE_TO_CENTER * np.sin(own[:, 2])
        poses, sizes = boxes(self.agents, LATER)
        now = slice(0, NOW + 1)
        size = np.array([LENGTH + 1.0, WIDTH + 0.4])
        return bool(overlapping(own[None], size, poses[:, now], sizes[:, None]).any())
