"""CoVLA's clips, made here in the layouts of both releases: a car on a circle, whose scenes are known."""

import json
import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from examples.scene_sources.covla import CoVLA
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.datamodules import NavsimDemonstrationsDataModule
from lightning_cgrpo.tasks.driving.answers import AnswerFormat
from lightning_cgrpo.tasks.driving.prompts import PromptFormat, history, messages

SPEED = 8.0
LEFT = [[0.0, -1.0, 0.0, 0.0], [0.0, 0.0, -1.0, 1.2], [1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]]
"""From the car's frame, y to the left, to the camera's: to the right, down, ahead."""
RIGHT = [[sign * value for value, sign in zip(row, (1, -1, -1, 1), strict=True)] for row in LEFT]
"""The same camera, from a frame with y to the right."""
FORM = PromptFormat(frames=3, cameras=("CAM_F0",), height=8, width=8)


def place(time: float, rate: float) -> tuple[float, float, float]:
    """On a circle to the left, entered at 0.7 rad; `rate` in rad/s."""
    turned = rate * time
    radius = SPEED / rate if rate else 0.0
    forward, left = (radius * math.sin(turned), radius * (1 - math.cos(turned))) if rate else (SPEED * time, 0.0)
    cos, sin = math.cos(0.7), math.sin(0.7)
    return cos * forward - sin * left, sin * forward + cos * left, 0.7 + turned


def seen(there: tuple[float, float, float], here: tuple[float, float, float]) -> list[float]:
    """x, y, yaw of `there` in the frame of `here`."""
    x, y, yaw = (a - b for a, b in zip(there, here, strict=True))
    cos, sin = math.cos(here[2]), math.sin(here[2])
    return [cos * x + sin * y, cos * y - sin * x, yaw]


def state(frame: int, rate: float, camera: list[list[float]] = LEFT) -> dict[str, Any]:
    here, side = place(frame / 20, rate), -camera[0][1]
    ahead = [seen(place((frame + i) / 20, rate), here) for i in range(60)]
    return {
        "trajectory": [[x, side * y, 0.0] for x, y, _ in ahead],
        "trajectory_count": 60,
        "extrinsic_matrix": camera,
        "intrinsic_matrix": [[2648.0, 0.0, 964.0], [0.0, 2648.0, 604.0], [0.0, 0.0, 1.0]],
    }


EGO = {"vEgo": SPEED, "aEgo": 0.25, "gearShifter": "drive", "leftBlinker": False}


def full(frame: int, rate: float, camera: list[list[float]] = LEFT) -> dict[str, Any]:
    """A record of CoVLA-Dataset."""
    return {str(frame): {**EGO, **state(frame, rate, camera)}}


def mini(frame: int, rate: float, camera: list[list[float]] = LEFT) -> dict[str, Any]:
    """A record of CoVLA-Dataset-Mini."""
    about = {"frame_id": frame, "ego_state": EGO, "image_path": f"images/a/{frame:04d}.png"}
    return {**about, **state(frame, rate, camera)}


def write(folder: Path, lines: list[str], name: str = "2022-07-14--14-32-55--10_first", between: str = "\n") -> Path:
    """A clip with small images, each in a color of its own."""
    for kind in ("states", f"images/{name}"):
        (folder / kind).mkdir(parents=True, exist_ok=True)
    (folder / "states" / f"{name}.jsonl").write_text(between.join(lines))
    for frame in range(0, len(lines), 10):
        Image.new("RGB", (8, 8), (frame % 256, 0, 0)).save(folder / "images" / name / f"{frame:04d}.png")
    return folder


def clip(record: Any = full, frames: int = 130, rate: float = 0.0, camera: Any = LEFT) -> list[str]:
    return [json.dumps(record(frame, rate, camera)) for frame in range(frames)]


@pytest.mark.parametrize(
    ("record", "between", "camera", "rate", "intent"),
    [
        (full, "\n", LEFT, 0.2, "left"),
        (full, "", RIGHT, -0.2, "right"),
        (mini, "\n", RIGHT, 0.1, "straight"),
        (mini, "", LEFT, 0.2, "left"),
        (full, "\n\n", LEFT, 0.0, "straight"),
    ],
)
def test_scenes_of_a_car_on_a_circle(
    tmp_path: Path, record: Any, between: str, camera: Any, rate: float, intent: str
) -> None:
    source = CoVLA(write(tmp_path, clip(record, rate=rate, camera=camera), between=between), 0.5)
    scenes = source.scenes("train")
    assert [scene.name for scene in scenes] == [f"covla_2022-07-14--14-32-55--10_first_00{30 + i}" for i in (0, 10)]
    for scene, start in zip(scenes, (1.5, 2.0), strict=True):
        here = place(start, rate)
        steps = [[seen(place(start + i / 2, rate), here) for i in part] for part in (range(-3, 1), range(1, 9))]
        torch.testing.assert_close(scene.ego.poses, torch.tensor(steps[0], dtype=torch.float64))
        torch.testing.assert_close(scene.human, torch.tensor(steps[1], dtype=torch.float64))
        assert scene.ego.velocities.tolist() == [[SPEED, 0.0]] * 4
        expected = torch.tensor([[0.25, SPEED * rate]] * 4, dtype=torch.float64)
        torch.testing.assert_close(scene.ego.accelerations, expected)
        assert scene.intent == intent


def test_demonstrations_have_the_front_camera_s_images(tmp_path: Path) -> None:
    sizes = dict.fromkeys(("train_prompts", "val_prompts", "test_prompts"))
    data = NavsimDemonstrationsDataModule(2, CoVLA(write(tmp_path, clip()), 0.5), FORM, True, **sizes, seed=0)
    data.setup("fit")
    (batch,) = data.train_dataloader()
    assert batch.columns["completion"] == ["[8.0,0.0], [16.0,0.0], [24.0,0.0], [32.0,0.0]"] * 2
    assert AnswerFormat().read(batch.columns["completion"][0]) is not None
    for scene, frame in zip(sorted(batch.columns["scene"], key=lambda scene: scene.name), (30, 40), strict=True):
        images = [part["image"] for part in messages(scene, FORM)[1]["content"] if part["type"] == "image"]
        assert [int(image[0, 0, 0]) for image in images] == [frame - 20, frame - 10, frame]
        assert np.allclose(history(scene), [[-SPEED * step / 4, 0.0] for step in range(6, -1, -1)])
    with pytest.raises(UserError, match=r"no maps to score drives on, try trainer\.limit_val_batches=0"):
        data.val_dataloader()


def test_a_standing_car_does_not_turn(tmp_path: Path) -> None:
    def standing(frame: int, rate: float, camera: Any) -> dict[str, Any]:
        record = full(frame, rate, camera)
        noise = np.random.default_rng(frame).normal(0, 0.01, (60, 3))
        record[str(frame)] |= {"trajectory": noise.tolist(), "vEgo": 0.0}
        return record

    scene = CoVLA(write(tmp_path, clip(standing))).scenes("train")[0]
    assert scene.human is not None and scene.human.abs().max() < 0.1
    assert scene.intent == "straight"


def broken(frame: int, **fields: Any) -> str:
    record = full(frame, 0.0)
    record[str(frame)] |= fields
    return json.dumps(record)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"120": {"vEgo": 3.1', "Expected JSON"),
        (json.dumps(full(119, 0.0)), ".jsonl: Expected a record of frame 120, but got none"),
        (json.dumps(mini(120, 0.0) | {"trajectory": None}), "trajectory: Expected numbers"),
        (broken(120, trajectory=[[0.0, 0.0, 0.0]] * 20), "more than 20 points"),
        (broken(120, trajectory=[[i / 2, 0.0, 0.0] for i in range(60)]), "goes on from 10 frames before"),
        (broken(120, trajectory=[[0.0, float("nan"), 0.0]] * 60), "finite"),
        (broken(120, extrinsic_matrix=np.eye(4).tolist()), "a front camera's"),
    ],
)  # fmt: skip
def test_malformed_records_are_counted_and_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, line: str, problem: str
) -> None:
    """Scenes without the record of frame 120 stay; the first scene reaches from 0 to 110."""
    lines = clip(frames=241)
    lines[120] = line
    write(tmp_path, lines)
    (tmp_path / "states" / "no_images.jsonl").write_text("")
    with caplog.at_level(logging.WARNING):
        scenes = CoVLA(tmp_path, 0.5).scenes("train")
    assert [int(scene.name[-4:]) for scene in scenes] == [30, 160]
    (message,) = caplog.messages
    assert message.startswith("CoVLA: 2 clips or records of 2 clips left out, first: ")
    line = "" if problem.startswith(".jsonl: ") else ".jsonl:121: "
    assert f"2022-07-14--14-32-55--10_first{line}" in message and problem in message


@pytest.mark.parametrize("record", [full, mini])
def test_frames_are_named_by_their_records(tmp_path: Path, record: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Lines are left out: frame 55, which no scene needs, and 120 to 135, which is one gap."""
    lines = clip(record, frames=281)
    write(tmp_path, [line for frame, line in enumerate(lines) if frame != 55 and not 120 <= frame < 136])
    for frame in (270, 280):
        Image.new("RGB", (8, 8)).save(tmp_path / "images/2022-07-14--14-32-55--10_first" / f"{frame:04d}.png")
    scenes = CoVLA(tmp_path, 0.5).scenes("train")
    assert [int(scene.name[-4:]) for scene in scenes] == [30, 170, 180, 190, 200]
    torch.testing.assert_close(scenes[1].human, scenes[0].human)
    (message,) = caplog.messages
    assert message.startswith("CoVLA: 1 clips or records") and "Expected a record of frame 120" in message


def test_a_clip_ends_where_trajectories_get_short(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The last records of a drive of 241 frames have the rest of the drive. macOS's files are no clips."""
    lines = clip(frames=241)
    for frame in range(182, 241):
        record = full(frame, 0.0)
        record[str(frame)]["trajectory"] = record[str(frame)]["trajectory"][: 241 - frame]
        lines[frame] = json.dumps(record)
    write(tmp_path, lines)
    (tmp_path / "states" / "._2022-07-14--14-32-55--10_first.jsonl").write_bytes(b"\0\5\26\7")
    scenes = CoVLA(tmp_path, 0.5).scenes("train")
    assert [int(scene.name[-4:]) for scene in scenes] == list(range(30, 141, 10))
    assert caplog.messages == []


def test_missing_images_and_a_wrong_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"which has no states/\*\.jsonl, try the folder of the unpacked data set"):
        CoVLA(tmp_path / "none").scenes("train")
    write(tmp_path, clip(), "a")
    (tmp_path / "images" / "a" / "0050.png").unlink()
    lacking = r"of 5\.5 s in .*, but got none of 1 clips, first: .*image of frame 50, but got none, try to extract"
    with pytest.raises(UserError, match=lacking):
        CoVLA(tmp_path).scenes("train")
    with pytest.raises(UserError, match=r"a multiple of 0\.5 s, but got 0\.7"):
        CoVLA(tmp_path, 0.7)
