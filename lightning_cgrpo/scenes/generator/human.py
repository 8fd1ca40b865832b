"""The human: follows the lane at a comfortable speed, behind whoever is ahead, and looks ahead for who will be.

Several drivers, more or less careful, drive the same way; the scene's human is the one who gets farthest of those who
come too close to the fewest. They know what the others will do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lightning_cgrpo.scenes.generator.motion import NOW, TIMES, Agent, boxes, overlapping
from lightning_cgrpo.scenes.generator.paths import Array, Path
from lightning_cgrpo.scenes.generator.stage import Stage
from lightning_cgrpo.scenes.vehicle import FRONT_LENGTH, LENGTH, REAR_AXLE_TO_CENTER, WIDTH

STEPS = 16
DT = 0.25
ACCELERATION, BRAKE, HARDEST, JERK = 1.4, 2.0, 3.5, 3.0
"""m/s², m/s², m/s², m/s³."""
CALM: Array = np.repeat([1.0, 0.6, 0.25], 3)
"""Share of the speed that the road allows, of every driver."""
FORESIGHT = np.tile([1, 6, 14], 3)
"""Steps ahead of which a driver minds who will be in the way."""
CORRIDOR = 1.35
"""Meters to each side of the path that must be free."""
MARGIN = np.array([1.2, 0.5])
"""Meters by which the ego's box is taken longer and wider: the simulated car doesn't follow exactly."""


@dataclass(frozen=True)
class Drive:
    """What the human drove.

    Args:
        s: ``[17]`` distances along the stage's path, from t = 0 every 0.25 s.
        end: speed and acceleration at 4 s.
        start: speed and acceleration at t = 0, and before.
        hit: ``[A]`` bool, agents that couldn't be kept clear of.
    """

    s: Array
    end: tuple[float, float]
    start: tuple[float, float]
    hit: Array

    def before(self, times: Array) -> Array:
        """Distances at times <= 0: the acceleration was the same."""
        speed, acceleration = self.start
        s: Array = self.s[0] + speed * times + acceleration * times**2 / 2
        return s


@dataclass(frozen=True)
class Obstacles:
    """Others, every 0.25 s from t = 0.

    Args:
        poses: ``[A, 17, 3]``.
        sizes: ``[A, 2]``.
        near: ``[A, 17]`` distance along the path where each begins; inf while it isn't on the path.
        speed: ``[A, 17]`` along the path.
    """

    poses: Array
    sizes: Array
    near: Array
    speed: Array

    @classmethod
    def of(cls, agents: Sequence[Agent], path: Path, first: int = 0) -> Obstacles:
        """Those of a scene whose times begin with `first` of `TIMES`."""
        poses, sizes = boxes(agents, first)
        poses = poses[:, NOW:]
        cos, sin = np.cos(poses[..., 2:]), np.sin(poses[..., 2:])
        front = np.array([1, -1, -1, 1]) * sizes[:, None, :1] / 2
        left = np.array([1, 1, -1, -1]) * sizes[:, None, 1:] / 2
        x, y = poses[..., :1] + front * cos - left * sin, poses[..., 1:2] + front * sin + left * cos
        places = path.project(np.stack([x, y], -1))
        bounds = _finer(np.stack([places[..., 0].min(-1), places[..., 1].min(-1), places[..., 1].max(-1)], -1))
        on = (bounds[..., 1] < CORRIDOR) & (bounds[..., 2] > -CORRIDOR)
        middle = path.project(poses[..., :2])[..., 0]
        speed = _finer(np.gradient(middle, TIMES[1] - TIMES[0], axis=1))
        return cls(_finer(poses), sizes, np.where(on, bounds[..., 0], np.inf), speed)


def _finer(values: Array) -> Array:
    """``[A, 17, ...]`` of ``[A, 9, ...]``: the middle between two as well."""
    finer = np.repeat(values, 2, axis=1)[:, :-1]
    finer[:, 1::2] = (values[:, 1:] + values[:, :-1]) / 2
    return finer


def drive(stage: Stage, agents: Sequence[Agent], rng: np.random.Generator) -> Drive:
    """Drive through the stage among agents."""
    others = Obstacles.of(agents, stage.path)
    return onward(stage, others, stage.s, _start(stage, others, rng))


def onward(stage: Stage, others: Obstacles, s: float, start: tuple[float, float]) -> Drive:
    """Drive on from a distance along the stage's path, with a speed and acceleration."""
    places, speeds = _follow(stage, others, s, start)
    touched = _touches(stage.path, places, speeds, others)
    best = int(np.lexsort([-places[:, -1], touched.sum(1)])[0])
    before, last = speeds[best, -2:]
    return Drive(places[best], (float(last), float(last - before) / DT), start, touched[best])


def _start(stage: Stage, others: Obstacles, rng: np.random.Generator) -> tuple[float, float]:
    """Speed and acceleration at t = 0 from which one can stop for who is ahead."""
    speed = stage.speed * rng.uniform(0.8, 0.97)
    slope = float(np.interp(stage.s, stage.path.s, np.gradient(stage.speeds, stage.path.s)))
    acceleration = float(np.clip(speed * slope, -BRAKE, 1.0)) + rng.normal(0, 0.15)
    gap = others.near[:, 0] - stage.s - FRONT_LENGTH
    ahead = np.isfinite(gap) & (gap > -FRONT_LENGTH)
    room = np.maximum(gap[ahead] - 3.0, 0)
    slower = others.speed[ahead, :9].min(1).clip(0)  # in the next 2 s: one sees him brake
    reachable = np.sqrt(slower**2 + 2 * BRAKE * 0.8 * room)
    if len(reachable) and reachable.min() < speed:
        speed = float(reachable.min())
        acceleration = min(acceleration, float(-rng.uniform(0.3, 0.9) * BRAKE))
    if speed < 0.5:
        return 0.0, 0.0
    return speed, min(acceleration, speed / 2)


def _follow(stage: Stage, others: Obstacles, place: float, start: tuple[float, float]) -> tuple[Array, Array]:
    """Distances and speeds ``[C, 17]`` of every driver, by the Intelligent Driver Model with limited jerk."""
    drivers = np.arange(len(CALM))
    near, lead = _foreseen(others)
    free = np.full((len(CALM), 1, STEPS + 1), np.inf)
    near, lead = np.concatenate([near, free], 1), np.concatenate([lead, 0 / free], 1)
    s, v, a = (np.full(len(CALM), value) for value in (place, *start))
    places, speeds = [s], [v]
    for step in range(STEPS):
        target = CALM * np.interp(s + 0.5 * v, stage.path.s, stage.speeds)
        wanted = ((target - v) / 0.5).clip(-1.5 * BRAKE, ACCELERATION)
        gap = near[:, :, step] - (s + FRONT_LENGTH)[:, None]
        gap[gap < -FRONT_LENGTH] = np.inf  # beside or behind
        first = gap.argmin(1)
        space = gap[drivers, first].clip(0.3)
        closing = v - lead[drivers, first, step]
        keep = 2.5 + (1.2 * v + v * closing / (2 * np.sqrt(ACCELERATION * BRAKE))).clip(0)
        wanted = np.minimum(wanted, ACCELERATION * (1 - (keep / space) ** 2)).clip(-HARDEST)
        a = a + (wanted - a).clip(-JERK * DT, JERK * DT)
        faster = (v + a * DT).clip(0)
        s, a = s + (v + faster) / 2 * DT, (faster - v) / DT
        v = faster
        places.append(s)
        speeds.append(v)
    return np.stack(places, 1), np.stack(speeds, 1)


def _foreseen(others: Obstacles) -> tuple[Array, Array]:
    """Where each obstacle begins, and its speed, at the nearest that it comes within every driver's foresight."""
    count = others.near.shape[1]
    found = []
    for steps in np.unique(FORESIGHT):
        window = np.minimum(np.arange(count)[:, None] + np.arange(steps), count - 1)
        nearest = others.near[:, window].argmin(-1)
        at = np.minimum(np.arange(count) + nearest, count - 1)
        rows = np.arange(len(at))[:, None]
        found.append((others.near[rows, at], others.speed[rows, at]))
    each = np.searchsorted(np.unique(FORESIGHT), FORESIGHT)
    return np.stack([found[i][0] for i in each]), np.stack([found[i][1] for i in each])


def _touches(path: Path, s: Array, speed: Array, others: Obstacles) -> Array:
    """Which agents ``[C, A]`` each driver comes close to, or would within 0.75 s if he kept his speed and direction."""
    size = np.array([LENGTH, WIDTH]) + MARGIN
    touched = np.zeros((len(s), len(others.poses)), dtype=bool)
    for ahead in range(4):
        own = path.at(s[:, : STEPS + 1 - ahead])
        forward = REAR_AXLE_TO_CENTER + speed[:, : STEPS + 1 - ahead] * ahead * DT
        own[..., 0] += forward * np.cos(own[..., 2])
        own[..., 1] += forward * np.sin(own[..., 2])
        theirs = others.poses[:, ahead:]
        touched |= overlapping(own[:, None], size, theirs[None], others.sizes[None, :, None]).any(-1)
    return touched
