"""Pictures of drives: of the right scenes at the right times, with all that was answered, and without randomness."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from matplotlib.colors import same_color
from matplotlib.figure import Figure
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from driving_scenes.generator import GeneratedScenes
from lightning_cgrpo.callbacks import DrivePictures
from lightning_cgrpo.callbacks.driving.pictures import last_images, picture
from lightning_cgrpo.core.rollout import PromptGroups, Rollouts
from lightning_cgrpo.tasks.driving.answers import AnswerFormat
from lightning_cgrpo.tasks.driving.prompts import PromptFormat, messages
from lightning_cgrpo.tasks.driving.task import DrivingTask
from navsim_score.render import style

TURN = GeneratedScenes(0).scenes("test")[104]
FORM = PromptFormat(frames=2, cameras=("CAM_F0", "CAM_L0"), height=16, width=32)
RIGHT = AnswerFormat().write(TURN.human, 0.5)
OFF = "[9.0,9.0], [20.0,20.0], [30.0,30.0], [40.0,40.0]"


def outputs(texts, scenes=(TURN,)):
    """What an update puts out, of texts by scene and answer."""
    mask = torch.ones(len(texts), len(texts[0]), 1, dtype=torch.bool)
    columns = {"prompt": [messages(scene, FORM) for scene in scenes], "scene": list(scenes)}
    return {
        "prompts": PromptGroups(torch.arange(len(texts)), columns),
        "rollouts": Rollouts(mask.long(), mask, {}, info={"drives": DrivingTask().scored(list(scenes), texts)}),
    }


def trainer_at(folder, update, rank=0, checking=False):
    return SimpleNamespace(
        global_step=update + 1,
        is_global_zero=rank == 0,
        sanity_checking=checking,
        loggers=[TensorBoardLogger(folder, name="x", version=0)],
    )


def images(folder):
    """The updates of which there are pictures, by tag."""
    found = EventAccumulator(str(folder / "x" / "version_0"), size_guidance={"images": 0})
    found.Reload()
    # Files of the same second are read by their names, in which a process counts without leading zeros.
    return {tag: sorted(event.step for event in found.Images(tag)) for tag in found.Tags()["images"]}


MODULE = SimpleNamespace(task=DrivingTask())
TWO = outputs([[RIGHT, "?"]] * 2, [TURN] * 2)


@pytest.fixture
def dots(monkeypatch):
    """Pictures that take no time."""
    monkeypatch.setattr("lightning_cgrpo.callbacks.driving.pictures.picture", lambda *_: Figure(figsize=(0.2, 0.2)))


def test_the_first_scenes_of_every_validation(tmp_path, dots):
    callback = DrivePictures(every_n_updates=100)
    for update, batch, checking in ((-1, 0, True), (6, 0, False), (6, 1, False), (9, 0, False)):
        trainer = trainer_at(tmp_path, update, checking=checking)
        callback.on_validation_batch_end(trainer, MODULE, TWO, None, batch)
        trainer.loggers[0].finalize("success")
    assert images(tmp_path) == {"val_drives/0": [7, 10]}


def test_only_the_first_process_draws_and_only_what_was_sampled(tmp_path, monkeypatch):
    monkeypatch.setattr("lightning_cgrpo.callbacks.driving.pictures.picture", lambda *_: pytest.fail("drawn"))
    callback = DrivePictures()
    callback.on_train_batch_end(trainer_at(tmp_path, 0, rank=1), MODULE, TWO, None, 0)
    callback.on_validation_batch_end(trainer_at(tmp_path, 0, rank=1), MODULE, TWO, None, 0)
    callback.on_train_batch_end(trainer_at(tmp_path, 0), MODULE, {}, None, 0)  # of supervised fine-tuning
    callback.on_train_batch_end(trainer_at(tmp_path, 0), MODULE, None, None, 0)


def test_a_picture_shows_all_answers_and_what_the_policy_saw():
    prompt = messages(TURN, FORM)
    figure = picture(TURN, prompt, *DrivingTask().scored([TURN], [[RIGHT, "I don't know", OFF, RIGHT]]))
    scores = DrivingTask().scored([TURN], [[RIGHT, OFF]])[0].scores.epdms.tolist()
    assert scores[0] > 0.9 and scores[1] == 0
    mean = (2 * scores[0]) / 4
    assert figure._suptitle.get_text().endswith(f"mean EPDMS {mean:.2f} of 4 answers, 1 malformed")
    assert figure._suptitle.get_text().startswith("go right, ")
    scene, beside, *_ = figure.axes
    drawn = [line for line in scene.lines if len(line.get_xdata()) > 30]  # 4 s at 10 Hz
    assert len(drawn) == 3
    for score, count in ((scores[0], 2), (0.0, 1)):
        assert sum(same_color(line.get_color(), style.SCORES(score)) for line in drawn) == count
    assert any(text.get_text() == "0  WAT 1.00" for text in beside.texts)
    seen = [(axes.get_title(loc="left"), axes.images[0].get_array()) for axes in figure.axes if axes.images]
    parts = [part for part in prompt[-1]["content"] if part["type"] == "image"]
    assert [label for label, _ in seen] == ["front view, t=0.0s", "front-left view, t=0.0s"]
    for (_, shown), part in zip(seen, parts[2:], strict=True):
        assert np.array_equal(shown, part["image"])


def test_nothing_but_malformed_answers_and_no_images():
    prompt = messages(TURN, PromptFormat(cameras=()))
    assert last_images(prompt) == {} == last_images([{"role": "user", "content": "text"}])
    figure = picture(TURN, prompt, *DrivingTask().scored([TURN], [["", "[1,2]"]]))
    assert figure._suptitle.get_text().endswith("mean EPDMS 0.00 of 2 answers, 2 malformed")
    assert len(figure.axes) == 2
    figure.canvas.draw()


def test_no_randomness_is_drawn():
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    picture(TURN, messages(TURN, FORM), *DrivingTask().scored([TURN], [[RIGHT, OFF]])).canvas.draw()
    assert torch.equal(before[0], torch.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1]) and before[2] == random.getstate()  # noqa: NPY002
