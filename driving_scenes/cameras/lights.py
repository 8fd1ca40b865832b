"""Traffic lights: a mark where a connector begins, and a lamp across the junction.

The lamp is invisible from the junction's other roads. Lights of turns move to their side, because connectors may begin
together.
"""

from __future__ import annotations

import math

import numpy as np

from driving_scenes.cameras.boxes import Faces
from driving_scenes.cameras.camera import CASE, GREEN, RED, SIGHT, Array, Color
from driving_scenes.scene import Scene

ASIDE, WIDTH, MARK_LENGTH = 1.15, 1.0, 1.6
LAMP_AHEAD, LAMP_HEIGHTS, CASE_WIDTH = 14.0, (3.2, 4.4), 0.15
HOOD = math.cos(math.radians(45))
"""Lamps are visible within 45 degrees of their front."""


class SceneLights:
    """A scene's lights, relative to an origin ``[2]``."""

    def __init__(self, scene: Scene, origin: Array) -> None:
        self._lights = scene.lights
        rows = []
        places = []
        forward = []
        for row in np.flatnonzero((scene.lights.red | scene.lights.green).any(0).numpy()).tolist():
            line = scene.map.lanes.centerlines[row].numpy() - origin
            steps = np.diff(line, axis=0)
            steps = steps[np.hypot(*steps.T) > 1e-6]
            ahead = steps[0] / np.hypot(*steps[0])
            left = np.array([-ahead[1], ahead[0]])
            turn = math.atan2(steps[-1] @ left, steps[-1] @ ahead)
            place = line[0] + ASIDE * float(np.clip(turn / (math.pi / 2), -1, 1)) * left
            if np.hypot(*place) < SIGHT:
                rows.append(row)
                places.append(place)
                forward.append(ahead)
        self._rows = np.array(rows, int)
        self._places = np.array(places).reshape(-1, 2)
        self._forward = np.array(forward).reshape(-1, 2)

    def at(self, time: float) -> tuple[list[Color], Array, Array]:
        """Colors of N lights that are on, places ``[N, 2]`` of their marks, and driving directions ``[N, 2]``."""
        step = int(np.searchsorted(self._lights.times.numpy(), time + 1e-6)) - 1
        if step < 0:
            return [], self._places[:0], self._forward[:0]
        red = self._lights.red[step].numpy()[self._rows]
        green = self._lights.green[step].numpy()[self._rows]
        on = red | green
        colors = [RED if is_red else GREEN for is_red in red[on]]
        return colors, self._places[on], self._forward[on]


def light_marks(places: Array, forward: Array) -> Array:
    """Rectangles ``[N, 4, 2]`` on the road."""
    half = WIDTH / 2 * np.stack([-forward[:, 1], forward[:, 0]], 1)
    far = places + MARK_LENGTH * forward
    return np.stack([places + half, places - half, far - half, far + half], 1)


def lamp_faces(colors: list[Color], places: Array, forward: Array, camera: Array) -> Faces:
    """Lamps visible from a camera at ``[2]``."""
    faces = Faces([], [], [])
    low, high = LAMP_HEIGHTS
    for color, middle, ahead in zip(colors, places + LAMP_AHEAD * forward, forward, strict=True):
        distance = float(np.hypot(*(middle - camera)))
        if (middle - camera) @ ahead < HOOD * distance:
            continue
        for rim, paint in ((CASE_WIDTH, CASE), (0.0, color)):
            half = (WIDTH / 2 + rim) * np.array([-ahead[1], ahead[0]])
            left = middle + half
            right = middle - half
            bottom = low - rim
            top = high + rim
            corners = [(*left, bottom), (*right, bottom), (*right, top), (*left, top)]
            faces.corners.append(np.array(corners))
            faces.colors.append(paint)
            faces.distances.append(distance)
    return faces
