"""Thoughts before trajectories: answers with them are read as the trajectory alone, or the text is refused."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from driving_scenes.generator import GeneratedScenes
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.datamodules import NavsimDemonstrationsDataModule
from lightning_cgrpo.tasks.driving.answers import AnswerFormat
from lightning_cgrpo.tasks.driving.prompts import PromptFormat
from lightning_cgrpo.tasks.driving.scene_prompts import DrivingDemonstrations
from lightning_cgrpo.tasks.driving.thoughts import WrittenThoughts, thought_first

SMALL = PromptFormat(frames=1, cameras=(), system=False)
TEXT = "The light is red; a car waits at 12.3 m. So stop :) and wait"


def write(path, *records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_answers_begin_with_the_thoughts_on_their_scene(tmp_path):
    scenes = GeneratedScenes(4, 3).scenes("train")
    records = [{"scene": scenes[row].name, "text": f" {TEXT} {row}.\n"} for row in (2, 0, 1)]
    thoughts = WrittenThoughts(write(tmp_path / "t.jsonl", *records))
    both = (DrivingDemonstrations(scenes, None, SMALL, True, of) for of in (None, thoughts))
    plain, thinking = (data.groups(torch.arange(3)).columns["completion"] for data in both)
    assert thinking == [f"{TEXT} {row}.\n{answer}" for row, answer in enumerate(plain)]
    for one, other in zip(plain, thinking, strict=True):
        assert torch.equal(AnswerFormat().read(one), AnswerFormat().read(other))


def test_every_scene_needs_thoughts(tmp_path):
    thoughts = WrittenThoughts(write(tmp_path / "t.jsonl", {"scene": "generated_train_0_0", "text": TEXT}))
    data = NavsimDemonstrationsDataModule(1, GeneratedScenes(0, 1), SMALL, thoughts=thoughts)
    (batch,) = data.train_dataloader()
    assert batch.columns["completion"][0].startswith(f"{TEXT}\n[")
    data = NavsimDemonstrationsDataModule(1, GeneratedScenes(1, 1), SMALL, thoughts=thoughts)
    with pytest.raises(UserError, match=r"on every training scene, but .*t\.jsonl has none on 'generated_train_1_0'"):
        next(iter(data.train_dataloader()))
    with pytest.raises(UserError, match="Expected a file or a folder"):
        WrittenThoughts(tmp_path / "no" / "such.jsonl")


@pytest.mark.parametrize("text", ["I wait (as it is red).", "[1.0,2.0]", "a [b] c", "() "])
def test_brackets_are_refused(tmp_path, text):
    path = write(tmp_path / "t.jsonl", {"scene": "a", "text": "fine"}, {"scene": "b", "text": text})
    with pytest.raises(UserError, match=r"t\.jsonl:2: Expected thoughts without brackets"):
        WrittenThoughts(path)


@given(st.text("[]()0,. x\n", min_size=1, max_size=30))
def test_what_is_taken_can_be_read(tmp_path_factory, text):
    """With any trajectory."""
    path = write(tmp_path_factory.mktemp("t") / "t.jsonl", {"scene": "a", "text": text})
    try:
        thought = WrittenThoughts(path).texts["a"]
    except UserError:
        return
    trajectory = "[-1.5,0.2], [3.0,1.0], [4.5,-2.0], [499.0,12.3]"
    answer = thought_first(thought, trajectory)
    assert torch.equal(AnswerFormat().read(answer), AnswerFormat().read(trajectory))
