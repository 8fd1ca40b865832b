"""Faces of boxes on the road."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from driving_scenes.cameras.camera import HEIGHT, SIGHT, TYPES, Array, Color
from driving_scenes.scene import Agents

SIDES = ((0, 1, 5, 4), (1, 2, 6, 5), (2, 3, 7, 6), (3, 0, 4, 7), (4, 5, 6, 7))
"""Corners of a box's left, rear, right, front and upper face. Corners 0 to 3 are on the ground: front left, rear left,
rear right, front right; corners 4 to 7 are above.
"""
SHADES = np.array([0.8, 0.5, 0.8, 1.3, 1.0])


class Faces(NamedTuple):
    """F visible faces; near faces hide far faces."""

    corners: list[Array]  # [4, 3] each
    colors: list[Color]
    distances: list[float]  # meters to the face's object


def box_faces(agents: Agents, origin: Array, place: Array, time: float) -> Faces:
    """Faces visible from a place ``[2]`` relative to an origin ``[2]``."""
    step = int(np.searchsorted(agents.times.numpy(), time + 1e-6)) - 1
    if step < 0 or not len(agents.tokens):
        return Faces([], [], [])
    states = agents.states[:, step].numpy()
    in_sight = agents.seen[:, step].numpy() & (np.hypot(*(states[:, :2] - origin).T) < SIGHT)
    states = states[in_sight]
    size = agents.sizes.numpy()[in_sight]
    # Corners of the boxes, on the ground and above; agents keep their velocity since the step.
    centers = states[:, :2] - origin + states[:, 3:5] * (time - float(agents.times[step]))
    forward = np.stack([np.cos(states[:, 2]), np.sin(states[:, 2])], 1)
    ahead = forward * size[:, :1] / 2
    left = np.stack([-forward[:, 1], forward[:, 0]], 1) * size[:, 1:2] / 2
    feet = np.stack([ahead + left, left - ahead, -ahead - left, ahead - left], 1) + centers[:, None]
    heights = np.stack([np.zeros(len(size)), size[:, 2]], 1).repeat(4, 1)
    corners = np.concatenate([np.concatenate([feet, feet], 1), heights[..., None]], 2)
    # Sides of a box are visible from the places beyond them.
    seen_from = place - centers
    along = (seen_from * ahead).sum(1)
    aside = (seen_from * left).sum(1)
    end = np.square(size[:, 0] / 2)
    edge = np.square(size[:, 1] / 2)
    visible = np.stack([aside > edge, along < -end, aside < -edge, along > end, size[:, 2] < HEIGHT], 1)
    rows, sides = np.nonzero(visible)
    types = agents.types.numpy()[in_sight]
    colors = np.clip(np.array(TYPES)[types[rows]] * SHADES[sides, None], 0, 255).astype(int)
    return Faces(
        list(corners[rows[:, None], np.array(SIDES)[sides]]),
        [(red, green, blue) for red, green, blue in colors.tolist()],
        np.hypot(*seen_from.T)[rows].tolist(),
    )
