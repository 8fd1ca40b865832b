"""Small, fast camera views of a scene, for sources without images.

A view shows roads, lane borders, lights and agents at one time, without the route and the future.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from driving_scenes.cameras.boxes import Faces, box_faces
from driving_scenes.cameras.camera import (
    FINENESS,
    GRASS,
    HORIZON_PLACE,
    SKY,
    Array,
    Camera,
    Color,
    Polygons,
    camera_place,
)
from driving_scenes.cameras.ground import ground_layers
from driving_scenes.cameras.lights import SceneLights, lamp_faces, light_marks
from driving_scenes.errors import InputError
from driving_scenes.scene import Scene


class View(NamedTuple):
    """Direction of a camera on the ego."""

    label: str
    yaw: float  # degrees to the left


CAMERAS = {
    "CAM_F0": View("front", 0.0),
    "CAM_L0": View("front-left", 55.0),
    "CAM_R0": View("front-right", -55.0),
    "CAM_L1": View("left", 112.0),
    "CAM_R1": View("right", -112.0),
    "CAM_L2": View("rear-left", 141.0),
    "CAM_R2": View("rear-right", -141.0),
    "CAM_B0": View("rear", 180.0),
}
"""NAVSIM's names, with directions near nuPlan's calibrations."""


class CameraViews:
    """Draws views of a scene."""

    def __init__(self, scene: Scene, height: int = 64, width: int = 128) -> None:
        self.scene = scene
        self.height = height
        self.width = width
        self._origin: Array = scene.ego.poses[-1, :2].numpy()
        ground = []
        for shapes, color in ground_layers(scene.map, self._origin):
            ground.append(Polygons.of(shapes, [color] * len(shapes)))
        self._ground = Polygons.cat(ground)
        self._lights = SceneLights(scene, self._origin)
        self._drawn = (math.nan, self._ground)

    def __call__(self, camera: str = "CAM_F0", time: float = 0.0) -> NDArray[np.uint8]:
        """Draw an image ``[height, width, 3]``.

        Raises:
            InputError: the time is outside the ego's history.
        """
        lens = Camera(self._pose(time), math.radians(CAMERAS[camera].yaw), self.height, self.width)
        image = Image.new("RGB", (lens.width, lens.height), GRASS)
        draw = ImageDraw.Draw(image)
        draw.rectangle((0, 0, lens.width, int(HORIZON_PLACE * lens.height)), SKY)
        for outline, color in lens.seen(self._polygons(time)):
            draw.polygon(outline, color)
        return np.asarray(image.reduce(FINENESS))

    def _polygons(self, time: float) -> Polygons:
        """All polygons at a time in the order of drawing, the same for all cameras."""
        if time != self._drawn[0]:
            place = camera_place(self._pose(time))
            colors, places, forward = self._lights.at(time)
            marks = Polygons.of(light_marks(places, forward), colors)
            agents = box_faces(self.scene.agents, self._origin, place, time)
            lamps = lamp_faces(colors, places, forward, place)
            parts = [self._ground, marks, *_far_to_near((agents, lamps))]
            self._drawn = (time, Polygons.cat(parts))
        return self._drawn[1]

    def _pose(self, time: float) -> Array:
        ego = self.scene.ego
        times = ego.times.numpy()
        poses = ego.poses.numpy()
        if not times[0] <= time <= 0:
            raise InputError(
                f"Expected a time from {times[0]:g} to 0, of which scene '{self.scene.name}' knows the ego, but got "
                f"{time:g}, try fewer frames."
            )
        columns = (poses[:, 0] - self._origin[0], poses[:, 1] - self._origin[1], np.unwrap(poses[:, 2]))
        return np.array([np.interp(time, times, column) for column in columns])


def _far_to_near(parts: Sequence[Faces]) -> Iterator[Polygons]:
    """The farthest faces first; faces of one object keep their order."""
    corners: list[Array] = []
    colors: list[Color] = []
    distances: list[float] = []
    for part in parts:
        corners += part.corners
        colors += part.colors
        distances += part.distances
    if not corners:
        return
    order = np.argsort([-distance for distance in distances], kind="stable")
    yield Polygons.of(np.stack(corners)[order], [colors[row] for row in order.tolist()])
