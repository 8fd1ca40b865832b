"""The human's drive along the lane, behind present and foreseen leaders.

Candidate drivers of different care know the others' future. The human is the candidate who comes too close to the
fewest agents; ties go to the farthest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from driving_scenes.generator.agent import NOW, TIMES, Agent, agent_boxes, overlapping
from driving_scenes.generator.curve import Array, Curve
from driving_scenes.generator.site import Site
from driving_scenes.vehicle import FRONT_LENGTH, LENGTH, REAR_AXLE_TO_CENTER, WIDTH

STEPS = 16
DT = 0.25
ACCELERATION = 1.4
BRAKE = 2.0
HARDEST = 3.5
"""m/s²; usual braking, and the hardest."""
JERK = 3.0
"""m/s³."""
HEADWAY = 1.2
"""Seconds that a driver keeps to the leader."""
STANDING_GAP = 2.5
"""Meters that a driver keeps to a standing leader."""
SMALLEST_GAP = 0.3
"""Meters; a driver brakes no harder for smaller gaps."""
REACHED_IN = 0.5
"""Seconds in which a driver would reach the speed that is allowed where the driver is then."""
FREE_BRAKE = 1.5
"""Hardest braking without a leader, as a multiple of `BRAKE`."""
START_SHARE = (0.8, 0.97)
"""Least and most of the allowed speed at t = 0, as shares."""
START_GAP = 3.0
"""Meters to a leader that braking from the speed at t = 0 leaves."""
START_BRAKE = 0.8
"""The braking that the speed at t = 0 may require, as a share of `BRAKE`."""
STANDING = 0.5
"""Speed at t = 0 in m/s below which the human stands."""
CALM: Array = np.repeat([1.0, 0.6, 0.25], 3)
"""Each driver's share of the allowed speed."""
FORESIGHT = np.tile([1, 6, 14], 3)
"""Steps of each driver's look-ahead."""
CORRIDOR = 1.35
"""Meters beside the path that must be free."""
MARGIN = np.array([1.2, 0.5])
"""Meters added to the ego's box, because the simulated car deviates."""


@dataclass(frozen=True)
class HumanDrive:
    """4 s along the site's path."""

    s: Array  # [17] distances along the path, every 0.25 s
    end: tuple[float, float]  # speed and acceleration at 4 s
    start: tuple[float, float]  # speed and acceleration at t = 0
    hit: Array  # [A] bool, agents that the human comes too close to

    def before(self, times: Array) -> Array:
        speed, acceleration = self.start
        s: Array = self.s[0] + speed * times + acceleration * times**2 / 2
        return s


@dataclass(frozen=True)
class Obstacles:
    """Other agents, every 0.25 s from t = 0."""

    poses: Array  # [A, 17, 3]
    sizes: Array  # [A, 2]
    near: Array  # [A, 17] distance along the path of the rear end; inf off the path
    speed: Array  # [A, 17] along the path

    @classmethod
    def of(cls, agents: Sequence[Agent], path: Curve, first: int = 0) -> Obstacles:
        """Agents of a scene whose first time is `TIMES[first]`."""
        poses, sizes = agent_boxes(agents, first)
        poses = poses[:, NOW:]
        # The corners of the boxes, and where they are along and beside the path.
        cos = np.cos(poses[..., 2:])
        sin = np.sin(poses[..., 2:])
        front = np.array([1, -1, -1, 1]) * sizes[:, None, :1] / 2
        left = np.array([1, 1, -1, -1]) * sizes[:, None, 1:] / 2
        x = poses[..., :1] + front * cos - left * sin
        y = poses[..., 1:2] + front * sin + left * cos
        along, beside = np.moveaxis(path.project(np.stack([x, y], -1)), -1, 0)
        bounds = _twice_as_fine(np.stack([along.min(-1), beside.min(-1), beside.max(-1)], -1))
        on_path = (bounds[..., 1] < CORRIDOR) & (bounds[..., 2] > -CORRIDOR)
        near = np.where(on_path, bounds[..., 0], np.inf)
        middle = path.project(poses[..., :2])[..., 0]
        speed = _twice_as_fine(np.gradient(middle, TIMES[1] - TIMES[0], axis=1))
        return cls(_twice_as_fine(poses), sizes, near, speed)


def _twice_as_fine(values: Array) -> Array:
    """Values ``[A, 2 T - 1, ...]`` at times ``[A, T, ...]`` and halfway between them."""
    finer = np.repeat(values, 2, axis=1)[:, :-1]
    finer[:, 1::2] = (values[:, 1:] + values[:, :-1]) / 2
    return finer


def drive(site: Site, agents: Sequence[Agent], rng: np.random.Generator) -> HumanDrive:
    """The human's drive from t = 0."""
    others = Obstacles.of(agents, site.path)
    return onward(site, others, site.s, _draw_start(site, others, rng))


def onward(site: Site, others: Obstacles, s: float, start: tuple[float, float]) -> HumanDrive:
    """The human's drive from distance `s` along the path, starting with a speed and an acceleration."""
    places, speeds = _follow_leaders(site, others, s, start)
    touched = _touched_agents(site.path, places, speeds, others)
    best = int(np.lexsort([-places[:, -1], touched.sum(1)])[0])  # by touched agents, then by distance
    before, last = speeds[best, -2:]
    end = (float(last), float(last - before) / DT)
    return HumanDrive(places[best], end, start, touched[best])


def _draw_start(site: Site, others: Obstacles, rng: np.random.Generator) -> tuple[float, float]:
    """Random speed and acceleration at t = 0 that let a driver brake behind the leaders."""
    speed = site.speed * rng.uniform(*START_SHARE)
    slope = float(np.interp(site.s, site.path.s, np.gradient(site.speeds, site.path.s)))
    acceleration = float(np.clip(speed * slope, -BRAKE, 1.0)) + rng.normal(0, 0.15)
    # The speed from which the driver can brake behind the slowest leader.
    gap = others.near[:, 0] - site.s - FRONT_LENGTH
    ahead = np.isfinite(gap) & (gap > -FRONT_LENGTH)
    room = np.maximum(gap[ahead] - START_GAP, 0)
    slower = others.speed[ahead, :9].min(1).clip(0)  # in the next 2 s
    reachable = np.sqrt(slower**2 + 2 * BRAKE * START_BRAKE * room)
    if len(reachable) and reachable.min() < speed:
        speed = float(reachable.min())
        acceleration = min(acceleration, float(-rng.uniform(0.3, 0.9) * BRAKE))
    if speed < STANDING:
        return 0.0, 0.0
    return speed, min(acceleration, speed / 2)


def _follow_leaders(site: Site, others: Obstacles, place: float, start: tuple[float, float]) -> tuple[Array, Array]:
    """Distances along the path and speeds ``[C, 17]`` of C drivers, whose jerk is limited."""
    drivers = np.arange(len(CALM))
    near, lead = _foreseen_leaders(others)
    # One more leader, at infinity, for drivers without any.
    none = np.full((len(CALM), 1, STEPS + 1), np.inf)
    near = np.concatenate([near, none], 1)
    lead = np.concatenate([lead, np.zeros_like(none)], 1)
    start_speed, start_acceleration = start
    speed = np.full(len(CALM), start_speed)
    acceleration = np.full(len(CALM), start_acceleration)
    places = [np.full(len(CALM), place)]
    speeds = [speed]
    for step in range(STEPS):
        target = CALM * np.interp(places[-1] + REACHED_IN * speed, site.path.s, site.speeds)
        # The nearest leader ahead of each driver.
        gaps = near[:, :, step] - (places[-1] + FRONT_LENGTH)[:, None]
        gaps[gaps < -FRONT_LENGTH] = np.inf  # beside or behind
        first = gaps.argmin(1)
        closing = speed - lead[drivers, first, step]
        # The driver's acceleration changes by the jerk at most; a standing car doesn't drive backward.
        wanted = _wanted_acceleration(speed, gaps[drivers, first], closing, target)
        acceleration = acceleration + (wanted - acceleration).clip(-JERK * DT, JERK * DT)
        faster = (speed + acceleration * DT).clip(0)
        places.append(places[-1] + (speed + faster) / 2 * DT)
        acceleration = (faster - speed) / DT
        speed = faster
        speeds.append(speed)
    return np.stack(places, 1), np.stack(speeds, 1)


def _wanted_acceleration(speed: Array, gap: Array, closing: Array, target: Array) -> Array:
    """Accelerations ``[C]`` of the Intelligent Driver Model, whose free drive is replaced by a steady change of speed.

    Args:
        speed: m/s.
        gap: meters to the leader; inf without one.
        closing: m/s by which the driver is faster than the leader.
        target: m/s that the driver would drive without a leader.
    """
    alone = ((target - speed) / REACHED_IN).clip(-FREE_BRAKE * BRAKE, ACCELERATION)
    keep = STANDING_GAP + (HEADWAY * speed + speed * closing / (2 * np.sqrt(ACCELERATION * BRAKE))).clip(0)
    behind = ACCELERATION * (1 - (keep / gap.clip(SMALLEST_GAP)) ** 2)
    wanted: Array = np.minimum(alone, behind).clip(-HARDEST)
    return wanted


def _foreseen_leaders(others: Obstacles) -> tuple[Array, Array]:
    """Distance and speed ``[C, A, 17]`` of each obstacle when it is nearest within a driver's foresight."""
    count = others.near.shape[1]
    # By steps of look-ahead: distance and speed of each obstacle when it is nearest within them.
    near_of = {}
    speed_of = {}
    for steps in np.unique(FORESIGHT).tolist():
        window = np.minimum(np.arange(count)[:, None] + np.arange(steps), count - 1)
        nearest = others.near[:, window].argmin(-1)
        at = np.minimum(np.arange(count) + nearest, count - 1)
        rows = np.arange(len(at))[:, None]
        near_of[steps] = others.near[rows, at]
        speed_of[steps] = others.speed[rows, at]
    drivers = FORESIGHT.tolist()
    return np.stack([near_of[steps] for steps in drivers]), np.stack([speed_of[steps] for steps in drivers])


def _touched_agents(path: Curve, s: Array, speed: Array, others: Obstacles) -> Array:
    """``[C, A]`` bool: driver and agent are ever too close, or would be within 0.75 s at constant velocity."""
    size = np.array([LENGTH, WIDTH]) + MARGIN
    touched = np.zeros((len(s), len(others.poses)), dtype=bool)
    for ahead in range(4):
        egos = path.at(s[:, : STEPS + 1 - ahead])
        forward = REAR_AXLE_TO_CENTER + speed[:, : STEPS + 1 - ahead] * ahead * DT
        egos[..., 0] += forward * np.cos(egos[..., 2])
        egos[..., 1] += forward * np.sin(egos[..., 2])
        poses_then = others.poses[:, ahead:]
        touched |= overlapping(egos[:, None], size, poses_then[None], others.sizes[None, :, None]).any(-1)
    return touched
