"""CoVLA's clips as demonstrations: a front camera, the car's motion, and no map (Arai et al., arXiv 2408.10845).

The data are behind a form. The layout is that of a public reader of both releases (`scripts/prepare_covla_full.py` of
github.com/FarmerJohnsBessie/CoVLA, commit 2bfea59): `CoVLA-Dataset` has lines ``{"FRAME": {…}}`` with speeds on
top, `CoVLA-Dataset-Mini` lines ``{"frame_id": FRAME, "ego_state": {…}, …}``. Milvus' documentation shows a record
(milvus.io/docs/best-practices-for-array-of-structs.md).
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from driving_scenes.json_fields import Field, SceneError
from driving_scenes.scene import Scene
from driving_scenes.scene_file import ego_to_json, scene_from_json
from driving_scenes.source import Scenes, SceneSource, Split
from examples.scene_sources.argoverse2.log import Array, relative, rotate
from lightning_cgrpo.core.errors import UserError

INTERVAL, FRAMES = 0.5, 10
"""Seconds and frames (at 20 Hz) of a step; other frames are not read."""
BEFORE, AFTER = 3, 8
"""Steps of a scene before and after t = 0."""
TURN = math.pi / 6
"""A sharper bend of the drive is a turn."""
STANDING = 0.5
"""Meters; a car that moves less in the seconds two trajectories share does not turn."""
FIT = 1.0
"""Meters by which the trajectories of two steps may differ."""
FRAME = re.compile(r'\s*\{\s*"(\d{1,9})"\s*:|.*?"frame_id"\s*:\s*(\d{1,9})')
EXTRACT = "try to extract the videos' images as docs/driving_data.md shows"

log = logging.getLogger(__name__)


class Moment(NamedTuple):
    """The t = 0 of a scene."""

    clip: str
    step: int


class _Record(NamedTuple):
    trajectory: Array  # [P, 2] x forward, y left, every frame from this one on
    motion: Array  # [2] speed, acceleration


class _MissingError(SceneError):
    """A frame's image or record is missing, or its trajectory is short. At a clip's end, each of these is usual."""


class _Clip(NamedTuple):
    images: list[str]  # of S steps
    poses: Array  # [S, 3] x, y, yaw
    motion: Array  # [S, 2]
    starts: list[int]  # steps of scenes


class CoVLA(SceneSource):
    """Training scenes of 4 s, with 1.5 s of history, from CoVLA's clips.

    The positions are those of `trajectory`, of 3 s, chained every half second. Headings come from the overlap of
    trajectories, the side of y from `extrinsic_matrix`, and the driving command from the next 4 s: a turn is more than
    30°. Every file is read once, and only every tenth record.

    Args:
        path: a folder with ``states/CLIP.jsonl`` and ``images/CLIP/FRAME.png`` (or .jpg).
        stride: seconds between scenes, a multiple of 0.5.

    Raises:
        UserError: (from `scenes`) there is no scene, or the split is not for training, because scores need a map.
    """

    def __init__(self, path: str | Path, stride: float = 1.0) -> None:
        self.path, self.stride = Path(path), round(stride / INTERVAL)
        if self.stride < 1 or self.stride * INTERVAL != stride:
            raise UserError(f"Expected argument `stride` to be a multiple of {INTERVAL} s, but got {stride}.")

    def scenes(self, split: Split) -> Sequence[Scene]:
        if split != "train":
            raise UserError(
                "Expected another source of scenes for evaluation, because CoVLA has no maps to score drives on, try "
                "trainer.limit_val_batches=0."
            )
        moments = [Moment(name, step) for name, clip in self._clips.items() for step in clip.starts[:: self.stride]]
        return Scenes(moments, self.scene)

    def scene(self, key: Moment) -> Scene:
        """Build a scene."""
        clip, step = self._clips[key.clip], key.step
        past, future = slice(step - BEFORE, step + 1), slice(step + 1, step + AFTER + 1)
        poses, human = (relative(clip.poses[part], clip.poses[step]) for part in (past, future))
        speed, acceleration = clip.motion[past].T
        sideways = speed * np.gradient(np.unwrap(poses[:, 2]), INTERVAL)
        turn = human[-1, 2]
        content = {
            "name": f"covla_{key.clip}_{step * FRAMES:04d}",
            "scene_type": "original",
            "map": {"lanes": [], "roadblocks": []},
            "route": [],
            "ego": ego_to_json(
                np.arange(-BEFORE, 1) * INTERVAL,
                poses,
                np.column_stack([speed, np.zeros_like(speed)]),
                np.column_stack([acceleration, sideways]),
            ),
            "human_trajectory": human.tolist(),
            "agents": [],
            "log": key.clip,
            "intent": "straight" if abs(turn) <= TURN else "left" if turn > 0 else "right",
            "cameras": {"CAM_F0": [str(self.path.absolute() / "images" / key.clip / x) for x in clip.images[past]]},
        }
        return scene_from_json(content, key.clip)

    @cached_property
    def _clips(self) -> dict[str, _Clip]:
        states = sorted((self.path / "states").glob("[!.]*.jsonl"))  # macOS adds ._CLIP.jsonl
        if not states:
            raise UserError(
                f"Expected CoVLA's folder, but got {self.path.absolute()}, which has no states/*.jsonl, try the folder "
                "of the unpacked data set."
            )
        problems: list[str] = []
        clips = {}
        for file in states:
            folder = self.path / "images" / file.stem
            images = _images(folder)
            if not any(images):
                problems.append(f"{folder}: Expected images, but got none, {EXTRACT}")
                continue
            clips[file.stem] = _read(file, folder, images, problems)
        first = f", first: {problems[0]}" if problems else ""
        if not any(clip.starts for clip in clips.values()):
            raise UserError(
                f"Expected scenes of {BEFORE * INTERVAL + AFTER * INTERVAL:g} s in {self.path}, but got none of "
                f"{len(states)} clips{first or ', which are shorter'}."
            )
        if problems:
            log.warning("CoVLA: %s clips or records of %s clips left out%s", len(problems), len(states), first)
        return clips


def _images(folder: Path) -> list[str]:
    """Names of the images of each step; empty where missing."""
    names = {int(path.stem): path.name for path in folder.glob("*") if path.stem.isdecimal()}
    return [names.get(frame, "") for frame in range(0, max(names, default=-1) + 1, FRAMES)]


def _read(file: Path, folder: Path, images: list[str], problems: list[str]) -> _Clip:
    """A clip; adds to `problems` a text for each malformed record, and for each gap."""
    records = _records(file)
    poses, motion = np.zeros((len(images), 3)), np.zeros((len(images), 2))
    complete = np.zeros(len(images), bool)
    before: _Record | None = None
    gap = ""
    for step, image in enumerate(images):
        frame = step * FRAMES
        try:
            if not image:
                raise _MissingError(f"{folder}: Expected an image of frame {frame}, but got none, {EXTRACT}")
            if step not in records:
                raise _MissingError(f"{file}: Expected a record of frame {frame}, but got none")
            line, text = records[step]
            here = _record(text, frame, f"{file}:{line}")
            if before is not None:
                turn = _turn(before.trajectory, here.trajectory, f"{file}:{line}")
                moved = rotate(before.trajectory[FRAMES], poses[step - 1, 2])
                poses[step] = poses[step - 1] + [*moved, turn]
        except SceneError as error:
            before = None
            if isinstance(error, _MissingError):
                gap = gap or str(error).rstrip(".")
            else:
                problems.append(str(error).rstrip("."))
            continue
        if gap:
            problems.append(gap)
            gap = ""
        motion[step], before, complete[step] = here.motion, here, True
    if not complete.any():
        problems.append(gap or f"{file}: Expected records, but got none")
    starts = [step for step in range(BEFORE, len(complete) - AFTER) if complete[step - BEFORE : step + AFTER + 1].all()]
    return _Clip(images, poses, motion, starts)


def _records(file: Path) -> dict[int, tuple[int, str]]:
    """Line number and text of the record of each step. A line without a frame follows the frame of the line before."""
    # Some copies have no line breaks between records.
    text = file.read_text(encoding="utf-8", errors="replace").replace("}{", "}\n{")
    records: dict[int, tuple[int, str]] = {}
    frame = -1
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            named = FRAME.match(line)
            frame = int(named[1] or named[2]) if named else frame + 1
            if frame % FRAMES == 0:
                records.setdefault(frame // FRAMES, (number, line))
    return records


def _record(line: str, frame: int, where: str) -> _Record:
    """Raises:
    SceneError: the record is malformed, or its trajectory is short.
    """
    try:
        top = Field(json.loads(line), where)
    except (ValueError, RecursionError) as error:
        raise SceneError(f"{where}: Expected JSON, but got: {error}.") from None
    state = top if top.get(str(frame)).value is None else top[str(frame)]
    ego = state if state.get("ego_state").value is None else state["ego_state"]
    points, camera = state["trajectory"].tensor(-1, 3), state["extrinsic_matrix"].tensor(-1, 4)
    if len(points) <= 2 * FRAMES:
        raise _MissingError(str(state["trajectory"].wrong(f"more than {2 * FRAMES} points", str(len(points)))))
    if points[0].norm() > FIT:
        raise state["trajectory"].wrong("points from the car on")
    to_the_right = float(camera[0, 1])  # of the image, where y grows; the car's frame is x forward
    if abs(to_the_right) < 0.5:
        raise state["extrinsic_matrix"].wrong("a front camera's")
    trajectory = points[:, :2].numpy() * [1.0, -math.copysign(1.0, to_the_right)]
    return _Record(trajectory, np.array([ego["vEgo"].number(), ego["aEgo"].number()]))


def _turn(before: Array, here: Array, where: str) -> float:
    """Radians to the left that fit a trajectory to the one of a step before.

    Raises:
        SceneError: the trajectories don't fit.
    """
    count = min(len(before) - FRAMES, len(here))
    old, new = before[FRAMES : FRAMES + count], here[:count]
    old, new = old - old[0], new - new[0]
    cross, dot = (new[:, 0] * old[:, 1] - new[:, 1] * old[:, 0]).sum(), (new * old).sum()
    turn = math.atan2(cross, dot) if np.hypot(*new[-1]) > STANDING else 0.0
    if np.hypot(*(rotate(new, np.asarray(turn)) - old).T).max() > FIT:
        raise SceneError(f"{where}: Expected a trajectory that goes on from {FRAMES} frames before.")
    return turn
