"""Agents, and their motion along curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from driving_scenes.generator.curve import Array, Curve
from driving_scenes.scene import AGENT_TYPES

TIMES: Array = np.arange(-1.5, 8.5, 0.5)
"""Times of a scene, and of the follow-up 4 s later."""
SEEN = 12
"""Number of a scene's times."""
NOW = 3
"""Index of t = 0."""
LATER = 8
"""Index of the follow-up's first time."""


@dataclass(frozen=True)
class Body:
    """Type and size of an agent."""

    kind: int  # row of AGENT_TYPES
    size: tuple[float, float, float]  # length, width, height

    @classmethod
    def random(cls, rng: np.random.Generator, model: str) -> Self:
        kind, small, large = MODELS[model]
        share = rng.random()
        size = [low + share * (high - low) for low, high in zip(small, large, strict=True)]
        return cls(AGENT_TYPES.index(kind), (size[0], size[1], size[2]))


MODELS = {
    "car": ("vehicle", (4.0, 1.75, 1.4), (5.3, 2.1, 1.9)),
    "truck": ("vehicle", (6.5, 2.3, 2.8), (9.5, 2.5, 3.6)),
    "bus": ("vehicle", (11.0, 2.5, 3.0), (12.5, 2.55, 3.3)),
    "bicycle": ("bicycle", (1.6, 0.5, 1.5), (1.9, 0.8, 1.9)),
    "pedestrian": ("pedestrian", (0.4, 0.5, 1.5), (0.9, 0.9, 1.9)),
    "cone": ("traffic_cone", (0.3, 0.3, 0.5), (0.5, 0.5, 1.0)),
    "barrier": ("barrier", (1.5, 0.3, 0.9), (2.5, 0.6, 1.1)),
    "sign": ("czone_sign", (0.5, 0.5, 1.0), (0.8, 1.0, 1.8)),
    "object": ("generic_object", (0.4, 0.4, 0.4), (1.2, 0.9, 1.2)),
}
"""Type, smallest size, largest size."""


@dataclass(frozen=True)
class Agent:
    """An agent at `TIMES`."""

    body: Body
    states: Array  # [20, 5] x, y, yaw of the center, and velocity

    @classmethod
    def driving(
        cls, body: Body, path: Curve, s: Array, speed: Array, left: Array | float = 0.0, sideways: Array | float = 0.0
    ) -> Self:
        """Drive at `s` along a path and `left` to its left (negative: right) ``[20]``, with their rates of change."""
        poses = path.at(s, left)
        # The inside of a bend is shorter than its middle.
        forward = speed * (1 - left * np.interp(s, path.s, path.curvature))
        cos = np.cos(poses[:, 2])
        sin = np.sin(poses[:, 2])
        velocity = np.stack([forward * cos - sideways * sin, forward * sin + sideways * cos], 1)
        poses[:, 2] += np.where(speed > 0.3, np.arctan2(sideways, np.maximum(forward, 1.0)), 0.0)
        return cls(body, np.concatenate([poses, velocity], 1))

    @classmethod
    def standing(cls, body: Body, pose: Array) -> Self:
        poses = np.tile(pose, (len(TIMES), 1))
        return cls(body, np.concatenate([poses, np.zeros((len(TIMES), 2))], 1))

    @classmethod
    def walking(cls, body: Body, pose: Array, speed: float) -> Self:
        velocity = speed * np.array([np.cos(pose[2]), np.sin(pose[2])])
        xy = pose[:2] + TIMES[:, None] * velocity
        yaw_and_velocity = np.broadcast_to([pose[2], *velocity], (len(TIMES), 3))
        return cls(body, np.concatenate([xy, yaw_and_velocity], 1))


def agent_boxes(agents: Sequence[Agent], first: int = 0) -> tuple[Array, Array]:
    """Poses ``[A, 12, 3]`` from `TIMES[first]` on, with unwrapped yaw; lengths and widths ``[A, 2]``."""
    poses = np.array([agent.states[first : first + SEEN, :3] for agent in agents]).reshape(-1, SEEN, 3)
    poses[..., 2] = np.unwrap(poses[..., 2])
    return poses, np.array([agent.body.size[:2] for agent in agents]).reshape(-1, 2)


def allowed_speed(path: Curve, limit: float, lateral: float, brake: float, stop: float | None = None) -> Array:
    """Highest speed ``[N]`` at the N points of a path.

    Args:
        limit: m/s.
        lateral: highest acceleration in bends, m/s².
        brake: deceleration, m/s².
        stop: distance of a stop along the path.
    """
    square = np.minimum(limit**2, lateral / np.maximum(np.abs(path.curvature), 1e-6))
    if stop is not None:
        square[path.s >= stop] = 0
    # The driver brakes before slower places, and speeds up only gradually after them.
    early = np.minimum.accumulate((square + 2 * brake * path.s)[::-1])[::-1] - 2 * brake * path.s
    late = np.minimum.accumulate(early - 2 * brake * path.s) + 2 * brake * path.s
    allowed: Array = np.sqrt(late.clip(0))
    return allowed


def travel_along(path: Curve, speed: Array, s: float) -> tuple[Array, Array]:
    """Distances and speeds at `TIMES`, from a speed ``[N]`` per point and distance `s` at t = 0."""
    # The time at which each point is reached, with t = 0 at `s`.
    slow = np.maximum(speed, 1e-3)
    moments = np.append(0.0, (2 * np.diff(path.s) / (slow[1:] + slow[:-1])).cumsum())
    moments -= np.interp(s, path.s, moments)
    # Before the first and after the last point the speed stays.
    beyond = np.maximum(TIMES - moments[-1], 0) * speed[-1] - np.maximum(moments[0] - TIMES, 0) * speed[0]
    reached = np.interp(TIMES, moments, path.s) + beyond
    return reached, np.interp(reached, path.s, speed)


def overlapping(first: Array, sizes: Array, second: Array, others: Array) -> NDArray[np.bool_]:
    """True where boxes with poses ``[..., 3]`` and sizes ``[..., 2]`` touch."""
    # Pairs whose centers are near enough.
    x = second[..., 0] - first[..., 0]
    y = second[..., 1] - first[..., 1]
    reach = (np.hypot(sizes[..., 0], sizes[..., 1]) + np.hypot(others[..., 0], others[..., 1])) / 2
    hit = x * x + y * y <= reach * reach
    near = np.nonzero(hit)
    x = x[near]
    y = y[near]
    first_yaw = np.broadcast_to(first[..., 2], hit.shape)[near]
    second_yaw = np.broadcast_to(second[..., 2], hit.shape)[near]
    size = np.broadcast_to(sizes, (*hit.shape, 2))[near]
    other = np.broadcast_to(others, (*hit.shape, 2))[near]
    # Of these, pairs that no line along a side separates.
    cos = np.abs(np.cos(second_yaw - first_yaw))
    sin = np.abs(np.sin(second_yaw - first_yaw))
    touch = np.ones(len(x), dtype=bool)
    for yaw, box, far in ((first_yaw, size, other), (second_yaw, other, size)):
        forward = np.abs(x * np.cos(yaw) + y * np.sin(yaw))
        left = np.abs(y * np.cos(yaw) - x * np.sin(yaw))
        touch &= 2 * forward <= box[:, 0] + far[:, 0] * cos + far[:, 1] * sin
        touch &= 2 * left <= box[:, 1] + far[:, 0] * sin + far[:, 1] * cos
    hit[near] = touch
    return hit
