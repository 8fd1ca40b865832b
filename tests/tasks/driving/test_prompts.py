"""Prompts: the recipe's order and words, what they know and what they don't."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from driving_scenes.cameras.camera_views import CameraViews
from driving_scenes.generator import GeneratedScenes
from driving_scenes.generator.rigid_motion import moved
from driving_scenes.json_fields import SceneError
from lightning_cgrpo.tasks.driving.answers import AnswerFormat
from lightning_cgrpo.tasks.driving.prompts import PromptFormat, history, intent, messages
from tests.driving_scenes.scenes import crossing, straight_road

PLAIN = PromptFormat(system=False)


def parts(scene, form=PLAIN):
    (user,) = messages(scene, form)
    assert user["role"] == "user"
    return user["content"]


def state(scene, form=PLAIN):
    return parts(scene, form)[-1]["text"]


def test_images_come_in_the_documented_order():
    """Frame by frame, in each front, front-left, front-right, each after its label."""
    scene = crossing()
    content = parts(scene)
    assert [part["type"] for part in content] == ["text", "image"] * 9 + ["text"]
    assert [part["text"] for part in content[:-1:2]] == [
        f"{view} view, t={time}s" for time in ("-1.0", "-0.5", "0.0") for view in ("front", "front-left", "front-right")
    ]
    views = CameraViews(scene, 64, 128)
    expected = [views(camera, at) for at in (-1.0, -0.5, 0.0) for camera in ("CAM_F0", "CAM_L0", "CAM_R0")]
    for part, image in zip(content[1::2], expected, strict=True):
        np.testing.assert_array_equal(part["image"], image)


def test_the_state_as_text():
    motion = {"velocity": [8.0, -0.04], "acceleration": [-1.26, 0.04]}
    scene = straight_road(
        intent="left",
        ego=[{"t": t, "pose": [8 * t, -1.75, 0.0], **motion} for t in (-1.5, -1.0, -0.5, 0.0)],
    )
    assert state(scene) == (
        "Intent: go left.\n"
        "Speed: 8.0 m/s.\n"
        "Longitudinal acceleration: -1.3 m/s^2.\n"
        "Lateral acceleration: 0.0 m/s^2.\n"
        "Positions of the last 1.5 s: [-12.0,0.0], [-10.0,0.0], [-8.0,0.0], [-6.0,0.0], [-4.0,0.0], [-2.0,0.0], "
        "[0.0,0.0].\n"
        "Given the input, predict the best 4-second future trajectory.\n"
        "Future trajectory: "
    )


def test_format_is_configuration():
    images = {"frames": 2, "frame_interval": 1.0, "cameras": ("CAM_F0",), "height": 16, "width": 40}
    form = PromptFormat(**images, answer=AnswerFormat(8, 0.5))
    system, user = messages(crossing(), form)
    assert [part.get("text", "").partition("\n")[0] for part in user["content"]] == [
        "front view, t=-1.0s", "", "front view, t=0.0s", "", "Intent: go straight."
    ]  # fmt: skip
    assert user["content"][1]["image"].shape == (16, 40, 3)
    (text,) = (part["text"] for part in system["content"])
    assert system["role"] == "system"
    assert "the next 4 s, 8 positions that are 0.5 s apart" in text
    assert "[x_1,y_1], ... [x_8,y_8]" in text
    assert "the front view, at t=-1.0s, t=0.0s" in text
    blind = messages(crossing(), PromptFormat(cameras=(), system=False))
    assert [part["type"] for part in blind[0]["content"]] == ["text"]


def test_history_is_smooth_and_in_the_egos_frame():
    """On a circle, natural splines are off by centimeters at most, wherever the scene is."""
    times = torch.tensor([-1.5, -1.0, -0.5, 0.0], dtype=torch.float64)
    angles = 0.4 * times
    poses = torch.stack([20 * angles.sin(), 20 * (1 - angles.cos()), angles], 1)
    scene = straight_road()
    scene = replace(scene, ego=replace(scene.ego, times=times, poses=poses))
    at = 0.4 * np.arange(-6, 1) / 4
    expected = np.stack([20 * np.sin(at), 20 * (1 - np.cos(at))], 1)
    for place in (scene, moved(scene, 2.0, (300.0, -40.0))):
        np.testing.assert_allclose(history(place), expected, atol=0.06)
        np.testing.assert_allclose(history(place)[::2], expected[::2], atol=1e-9)


def test_a_short_history_is_what_is_known():
    scene = straight_road()
    ego = scene.ego
    for kept, points in ((2, 3), (1, 1)):
        short = replace(ego, times=ego.times[-kept:], poses=ego.poses[-kept:])
        assert len(history(replace(scene, ego=short))) == points


def test_an_intent_follows_from_the_route_where_the_scene_has_none():
    """The generator knows where its routes lead."""
    source = GeneratedScenes(5).scenes("val")
    scenes = [source[index] for index in range(40)]
    found = [intent(replace(scene, intent=None, human=None)) for scene in scenes]
    assert {scene.intent for scene in scenes} == {"left", "straight", "right"}
    assert np.mean([a == scene.intent for a, scene in zip(found, scenes, strict=True)]) >= 0.9
    assert intent(replace(scenes[0], intent="unknown")) == found[0]
    assert intent(replace(scenes[0], intent="right")) == "right"
    with pytest.raises(SceneError, match="route: Expected at least one roadblock"):
        intent(replace(scenes[0], intent=None, route=()))


def test_a_prompt_says_nothing_of_the_future():
    """But for the coarse command, which here is the route's."""
    scene = replace(GeneratedScenes(2).scenes("train")[1], intent=None)
    agents = scene.agents
    later = agents.times > 0
    states = agents.states.clone()
    states[:, later] += 5.0
    agents = replace(agents, states=states, seen=agents.seen | later)
    other = replace(scene, human=None, pdm_trajectory=torch.zeros(41, 3), agents=agents)
    for part, same in zip(parts(other), parts(scene), strict=True):
        assert part.get("text") == same.get("text")
        np.testing.assert_array_equal(part.get("image", 0), same.get("image", 0))


@pytest.fixture
def photographed(tmp_path):
    """A scene with images of three cameras, of one color each."""
    from PIL import Image

    paths = {}
    for number, camera in enumerate(("CAM_F0", "CAM_L0", "CAM_B0")):
        paths[camera] = [str(tmp_path / f"{camera}_{frame}.png") for frame in range(4)]
        for frame, path in enumerate(paths[camera]):
            Image.new("RGB", (192, 108), (50 * frame, 100 * number, 7)).save(path)
    return replace(crossing(), cameras=paths)


def test_camera_images_are_shown_where_there_are_some(photographed):
    form = PromptFormat(frames=2, cameras=("CAM_L0", "CAM_F0"), height=20, width=32, system=False)
    images = [part["image"] for part in parts(photographed, form) if part["type"] == "image"]
    colors = [(100, 100, 7), (100, 0, 7), (150, 100, 7), (150, 0, 7)]
    for image, color in zip(images, colors, strict=True):
        assert image.shape == (20, 32, 3)
        assert image.dtype == np.uint8
        assert (image == color).all()


def test_missing_images_are_named(photographed):
    with pytest.raises(SceneError, match=r"cameras.CAM_R0: Expected 4 paths, .* but got none"):
        parts(photographed)
    with pytest.raises(SceneError, match="an image at"):
        parts(photographed, PromptFormat(cameras=("CAM_F0",), frame_interval=0.4))
