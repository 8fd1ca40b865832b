"""A scene as a chat after the paper's recipe (docs/navsim_score.md §14): images, then the ego's state as text."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from lightning_cgrpo.errors import UserError, did_you_mean
from lightning_cgrpo.navsim.route.lane_ahead import lane_ahead
from lightning_cgrpo.navsim.simulation.interpolation import in_ego
from lightning_cgrpo.scenes.cameras.camera_views import CAMERAS, Views
from lightning_cgrpo.scenes.json_fields import SceneError
from lightning_cgrpo.scenes.scene import Scene
from lightning_cgrpo.tasks.driving.answers import AnswerFormat, number, resampled, written

INTENTS = ("left", "straight", "right")
TURN = math.pi / 6
"""From here on a route that bends is a turn."""
AHEAD, SHORTEST_AHEAD = 4.0, 20.0
"""Seconds, and meters at least, of the route that an intent is about."""
HISTORY, HISTORY_INTERVAL = 1.5, 0.25
"""Seconds."""
SAME_TIME = 1e-3

SYSTEM = """\
You are an expert driver. You drive the ego vehicle, which is at [0.0,0.0] and faces +x; +y is to its left. All \
positions are in meters.

You get
- images: {views}, at {times}
- what to do next: go left, go straight or go right
- the speed, and the longitudinal and lateral acceleration
- the positions of the last {history:g} s at {rate:g} Hz

Write the best trajectory of the next {seconds:g} s, {waypoints} positions that are {interval:g} s apart, as raw text:
Future trajectory: [x_1,y_1], ... [x_{waypoints},y_{waypoints}]"""


@dataclass(frozen=True)
class PromptFormat:
    """What a prompt shows, and what it asks for.

    Args:
        frames: moments of which there are images, the last one t = 0.
        frame_interval: seconds between them.
        cameras: of each moment, in this order.
        height: of each image, pixels. Images of real cameras are scaled to this size.
        width: of each image, pixels.
        system: begin with a system message that describes input and answer; models that learn the task from scratch
            need none.
        answer: what is asked for.

    Raises:
        UserError: a number isn't positive, or there is no such camera.
    """

    frames: int = 3
    frame_interval: float = 0.5
    cameras: tuple[str, ...] = ("CAM_F0", "CAM_L0", "CAM_R0")
    height: int = 64
    width: int = 128
    system: bool = True
    answer: AnswerFormat = field(default_factory=AnswerFormat)

    def __post_init__(self) -> None:
        for name in ("frames", "height", "width", "frame_interval"):
            if not getattr(self, name) > 0:
                raise UserError(f"Expected argument `{name}` to be positive, but got {getattr(self, name)}.")
        for camera in self.cameras:
            if camera not in CAMERAS:
                hint = did_you_mean(camera, CAMERAS)
                raise UserError(f"Expected argument `cameras` to be of {', '.join(CAMERAS)}, but got '{camera}'.{hint}")

    @property
    def times(self) -> list[float]:
        """Of the frames, seconds."""
        return [(frame + 1 - self.frames) * self.frame_interval for frame in range(self.frames)]


def messages(scene: Scene, form: PromptFormat) -> list[dict[str, Any]]:
    """The chat that asks for a trajectory. It says nothing of the future but the intent.

    Parts of contents are texts and images, see `VisionLanguagePolicy`.

    Raises:
        SceneError: an image is missing, or there is no intent and no route to tell it from.
        UserError: the scene doesn't go back as far as the frames.
    """
    look = _Images(scene, form)
    parts: list[dict[str, Any]] = []
    for time in form.times:
        for camera in form.cameras:
            parts.append({"type": "text", "text": f"{CAMERAS[camera].label} view, t={time:.1f}s"})
            parts.append({"type": "image", "image": look(camera, time)})
    parts.append({"type": "text", "text": _state(scene, form)})
    user = {"role": "user", "content": parts}
    if not form.system:
        return [user]
    text = SYSTEM.format(
        views=", ".join(f"the {CAMERAS[camera].label} view" for camera in form.cameras) or "none",
        times=", ".join(f"t={time:.1f}s" for time in form.times),
        history=HISTORY,
        rate=1 / HISTORY_INTERVAL,
        seconds=form.answer.seconds,
        waypoints=form.answer.waypoints,
        interval=form.answer.interval,
    )
    return [{"role": "system", "content": [{"type": "text", "text": text}]}, user]


def _state(scene: Scene, form: PromptFormat) -> str:
    velocity, acceleration = scene.ego.velocities[-1], scene.ego.accelerations[-1].tolist()
    return (
        f"Intent: go {intent(scene)}.\n"
        f"Speed: {number(float(velocity.norm()))} m/s.\n"
        f"Longitudinal acceleration: {number(acceleration[0])} m/s^2.\n"
        f"Lateral acceleration: {number(acceleration[1])} m/s^2.\n"
        f"Positions of the last {HISTORY:g} s: {written(history(scene))}.\n"
        f"Given the input, predict the best {form.answer.seconds:g}-second future trajectory.\n"
        "Future trajectory: "
    )


def history(scene: Scene) -> list[list[float]]:
    """Positions x, y in the ego's frame at t = 0, at 4 Hz from -1.5 s to now: seven, where the scene knows them."""
    times, poses = scene.ego.times, scene.ego.poses
    known = min(HISTORY, -float(times[0]))
    steps = int(known / HISTORY_INTERVAL + SAME_TIME)
    if not steps:
        return [[0.0, 0.0]]
    at = [-step * HISTORY_INTERVAL for step in range(steps, -1, -1)]
    points: list[list[float]] = resampled(in_ego(poses[-1], poses)[None, :, :2], times.tolist(), at)[0].tolist()
    return points


def intent(scene: Scene) -> str:
    """The driving command, ``left``, ``straight`` or ``right``: the scene's, or else where its route leads.

    Raises:
        SceneError: there is neither.
    """
    if scene.intent in INTENTS:
        return scene.intent
    ahead = lane_ahead(scene)
    road, path = ahead.road, ahead.path
    start = float(path.project(road.position))
    end = start + max(AHEAD * float(scene.ego.velocities[-1].norm()), SHORTEST_AHEAD)
    # A turn counts as a whole, once it begins within this distance.
    begin = 0.0
    for lane in ahead.lanes:
        length = road.length(lane)
        if bool(road.lanes.connector[lane]) and start < begin + length and begin < end:
            end = max(end, begin + length)
        begin += length
    turn = math.remainder(float(path.at(np.array(end))[2] - path.at(np.array(start))[2]), math.tau)
    return "straight" if abs(turn) < TURN else "left" if turn > 0 else "right"


class _Images:
    """The images of a scene: of its cameras, where it names files, or else drawn."""

    def __init__(self, scene: Scene, form: PromptFormat) -> None:
        self.scene, self.form = scene, form
        self.files: Any = scene.extra.get("cameras")
        self.views = None if self.files else Views(scene, form.height, form.width)

    def __call__(self, camera: str, time: float) -> NDArray[np.uint8]:
        """``[height, width, 3]``."""
        if self.views is not None:
            return self.views(camera, time)
        path = self._file(camera, time)
        try:
            with Image.open(path) as image:
                image.draft("RGB", (self.form.width, self.form.height))  # JPEG: decoded no larger than need be
                size = (self.form.width, self.form.height)
                return np.array(image.convert("RGB").resize(size, Image.Resampling.BOX))
        except (OSError, ValueError) as error:
            raise SceneError(
                f"{self.scene.name}: cameras.{camera}: Expected an image, but got {path}: {error}."
            ) from None

    def _file(self, camera: str, time: float) -> str:
        """The camera's file of that time; they are those of the ego's history."""
        paths = self.files.get(camera) if isinstance(self.files, dict) else None
        times = self.scene.ego.times
        where = f"{self.scene.name}: cameras.{camera}"
        if not isinstance(paths, list) or len(paths) != len(times):
            got = "none" if paths is None else str(paths)[:60]
            raise SceneError(f"{where}: Expected {len(times)} paths, one of each state of the ego, but got {got}.")
        step = int((times - time).abs().argmin())
        if abs(float(times[step]) - time) > SAME_TIME:
            raise SceneError(f"{where}: Expected an image at {time:g} s, but got images at {times.tolist()} s.")
        return str(paths[step])
