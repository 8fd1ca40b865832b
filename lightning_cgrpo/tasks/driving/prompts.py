"""A scene as the paper's chat: images, then the ego's state."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from driving_scenes.cameras.camera_views import CAMERAS, CameraViews
from driving_scenes.json_fields import SceneError
from driving_scenes.scene import Scene
from lightning_cgrpo.core.errors import UserError, did_you_mean
from lightning_cgrpo.tasks.driving.answers import AnswerFormat, format_number, format_points, resample_paths
from navsim_score.route.lane_ahead import lane_ahead
from navsim_score.simulation.interpolation import in_ego

INTENTS = ("left", "straight", "right")
TURN = math.pi / 6
"""A sharper bend of the route is a turn."""
AHEAD, SHORTEST_AHEAD = 4.0, 20.0
"""Seconds, and meters at least, of the route that an intent describes."""
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
    """Content of a prompt, and the answer it asks for.

    Args:
        frames: moments with images; the last is t = 0.
        frame_interval: seconds between moments.
        cameras: cameras of each moment, in order.
        height: pixels of each image; recorded images are scaled.
        width: pixels of each image.
        system: add a system message; models from scratch need none.
        answer: format of the answer.
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
            value = getattr(self, name)
            if not value > 0:
                raise UserError(f"Expected argument `{name}` to be positive, but got {value}.")
        for camera in self.cameras:
            if camera not in CAMERAS:
                hint = did_you_mean(camera, CAMERAS)
                raise UserError(f"Expected argument `cameras` to be of {', '.join(CAMERAS)}, but got '{camera}'.{hint}")

    @property
    def times(self) -> list[float]:
        return [(frame + 1 - self.frames) * self.frame_interval for frame in range(self.frames)]


def messages(scene: Scene, form: PromptFormat) -> list[dict[str, Any]]:
    """The chat; of the future it contains only the intent.

    Raises:
        SceneError: an image, or both intent and route are missing.
        UserError: the scene's history is shorter than the frames.
    """
    # 1. Images of each moment, recorded or drawn.
    views = None if scene.cameras else CameraViews(scene, form.height, form.width)
    parts: list[dict[str, Any]] = []
    for time in form.times:
        for camera in form.cameras:
            parts.append({"type": "text", "text": f"{CAMERAS[camera].label} view, t={time:.1f}s"})
            image = _read_image(scene, form, camera, time) if views is None else views(camera, time)
            parts.append({"type": "image", "image": image})
    # 2. The ego's state, and the system message.
    parts.append({"type": "text", "text": _state_text(scene, form)})
    user = {"role": "user", "content": parts}
    if not form.system:
        return [user]
    labels = [f"the {CAMERAS[camera].label} view" for camera in form.cameras]
    text = SYSTEM.format(
        views=", ".join(labels) or "none",
        times=", ".join(f"t={time:.1f}s" for time in form.times),
        history=HISTORY,
        rate=1 / HISTORY_INTERVAL,
        seconds=form.answer.seconds,
        waypoints=form.answer.waypoints,
        interval=form.answer.interval,
    )
    return [{"role": "system", "content": [{"type": "text", "text": text}]}, user]


def _state_text(scene: Scene, form: PromptFormat) -> str:
    speed = float(scene.ego.velocities[-1].norm())
    longitudinal, lateral = scene.ego.accelerations[-1].tolist()
    return (
        f"Intent: go {intent(scene)}.\n"
        f"Speed: {format_number(speed)} m/s.\n"
        f"Longitudinal acceleration: {format_number(longitudinal)} m/s^2.\n"
        f"Lateral acceleration: {format_number(lateral)} m/s^2.\n"
        f"Positions of the last {HISTORY:g} s: {format_points(history(scene))}.\n"
        f"Given the input, predict the best {form.answer.seconds:g}-second future trajectory.\n"
        "Future trajectory: "
    )


def history(scene: Scene) -> list[list[float]]:
    """Positions x, y in the ego's frame, every 0.25 s from -1.5 s or the first seconds state."""
    times = scene.ego.times
    poses = scene.ego.poses
    seconds = min(HISTORY, -float(times[0]))
    steps = int(seconds / HISTORY_INTERVAL + SAME_TIME)
    if not steps:
        return [[0.0, 0.0]]
    at = [-step * HISTORY_INTERVAL for step in range(steps, -1, -1)]
    path = in_ego(poses[-1], poses)[None, :, :2]
    points: list[list[float]] = resample_paths(path, times.tolist(), at)[0].tolist()
    return points


def intent(scene: Scene) -> str:
    """The driving command ``left``, ``straight`` or ``right``, from the scene or its route.

    Raises:
        SceneError: the scene has neither.
    """
    if scene.intent in INTENTS:
        return scene.intent
    # 1. The stretch of the route that the command describes.
    ahead = lane_ahead(scene)
    start = float(ahead.path.project(ahead.road.position))
    end = start + max(AHEAD * float(scene.ego.velocities[-1].norm()), SHORTEST_AHEAD)
    # 2. A turn that begins within this stretch counts as a whole.
    lane_start = 0.0
    for lane in ahead.lanes:
        lane_end = lane_start + ahead.road.length(lane)
        if bool(ahead.road.lanes.connector[lane]) and start < lane_end and lane_start < end:
            end = max(end, lane_end)
        lane_start = lane_end
    # 3. How far the route turns there.
    first_yaw = ahead.path.at(np.array(start))[2]
    last_yaw = ahead.path.at(np.array(end))[2]
    turn = math.remainder(float(last_yaw - first_yaw), math.tau)
    if abs(turn) < TURN:
        return "straight"
    return "left" if turn > 0 else "right"


def _read_image(scene: Scene, form: PromptFormat, camera: str, time: float) -> NDArray[np.uint8]:
    times = scene.ego.times
    paths = scene.cameras.get(camera, ())
    where = f"{scene.name}: cameras.{camera}"
    if len(paths) != len(times):
        got = str(paths)[:60] if paths else "none"
        raise SceneError(f"{where}: Expected {len(times)} paths, one of each state of the ego, but got {got}.")
    step = int((times - time).abs().argmin())
    if abs(float(times[step]) - time) > SAME_TIME:
        raise SceneError(f"{where}: Expected an image at {time:g} s, but got images at {times.tolist()} s.")
    size = (form.width, form.height)
    try:
        with Image.open(paths[step]) as image:
            image.draft("RGB", size)  # decodes a JPEG no larger than needed
            return np.array(image.convert("RGB").resize(size, Image.Resampling.BOX))
    except (OSError, ValueError) as error:
        raise SceneError(f"{where}: Expected an image, but got {paths[step]}: {error}.") from None
