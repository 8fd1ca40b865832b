"""Pictures of the policy's drives in TensorBoard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from lightning.pytorch import Callback, Trainer
from numpy.typing import NDArray

from driving_scenes.scene import Scene
from lightning_cgrpo.callbacks.driving.scores import expect_driving
from lightning_cgrpo.callbacks.log_writers import writers
from lightning_cgrpo.tasks.driving.prompts import intent
from lightning_cgrpo.tasks.driving.task import ScoredAnswers

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class DrivePictures(Callback):
    """Draws scenes from above, with answers in the colors of their EPDMS, beside the prompt's images.

    ``drives/<n>`` are an update's first scenes with their G answers. ``val_drives/<n>`` are a validation's first scenes
    with `eval_group_size` answers. Titles count malformed answers. The first process draws existing samples, and
    uses no random numbers.

    Args:
        every_n_updates: interval of pictures of updates.
        scenes: number of scenes drawn each time.

    Raises:
        UserError: (when training starts) the task is not driving.
    """

    changes_learning = False

    def __init__(self, every_n_updates: int = 50, scenes: int = 1) -> None:
        for name, value in (("every_n_updates", every_n_updates), ("scenes", scenes)):
            if value < 1:
                raise ValueError(f"Expected argument `{name}` to be at least 1, but got {value}.")
        self.every_n_updates = every_n_updates
        self.scenes = scenes

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        expect_driving(self, pl_module)

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        update = trainer.global_step - 1
        # Supervised fine-tuning samples nothing.
        if outputs and "rollouts" in outputs and update % self.every_n_updates == 0:
            self._write_pictures(trainer, outputs, "drives", update)

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if batch_idx == 0 and dataloader_idx == 0 and not trainer.sanity_checking:
            self._write_pictures(trainer, outputs, "val_drives", trainer.global_step)

    def _write_pictures(self, trainer: Trainer, outputs: Any, tag: str, update: int) -> None:
        columns = outputs["prompts"].columns
        scored_answers = outputs["rollouts"].info["drives"]
        for writer in writers(trainer):
            for row in range(min(self.scenes, len(scored_answers))):
                figure = picture(columns["scene"][row], columns["prompt"][row], scored_answers[row])
                writer.add_figure(f"{tag}/{row}", figure, update)


def picture(scene: Scene, prompt: list[dict[str, Any]], answers: ScoredAnswers) -> Figure:
    """Draw a scene with the G answers and the prompt's last images."""
    from navsim_score.render.draw import draw  # slow to import matplotlib

    scores = answers.scores
    tags = [f"WAT {value:.2f}" for value in scores.weighted_average.nan_to_num(0).tolist()]
    figure = draw(scene, answers.poses, scores, tags=tags, images=last_images(prompt))
    speed = scene.ego.velocities[-1].norm()
    mean_epdms = scores.epdms.nan_to_num(0).mean()
    malformed = (~scores.valid).sum()
    figure.suptitle(
        f"go {intent(scene)}, {speed:.1f} m/s: mean EPDMS {mean_epdms:.2f} of {len(tags)} answers, "
        f"{malformed} malformed",
        fontsize=10,
    )
    return figure


def last_images(prompt: list[dict[str, Any]]) -> dict[str, NDArray[np.uint8]]:
    """Images of a prompt's last moment by label."""
    images: dict[str, NDArray[np.uint8]] = {}
    label = ""
    for message in prompt:
        if not isinstance(message["content"], list):
            continue
        for part in message["content"]:
            if part["type"] == "text":
                label = part["text"]  # of the next image
            else:
                images[label] = np.asarray(part["image"])
    if not images:
        return {}
    # A label ends with the moment of its image.
    last_moment = _moment(list(images)[-1])
    return {label: image for label, image in images.items() if _moment(label) == last_moment}


def _moment(label: str) -> str:
    return label.rpartition(", ")[2]
