"""A policy's answers as the devkit's submission."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from torch import Tensor

from lightning_cgrpo.callbacks.driving.scores import expect_driving
from lightning_cgrpo.callbacks.log_writers import run_folder
from lightning_cgrpo.core.distributed import gather_objects_on_first
from lightning_cgrpo.tasks.driving.answers import POSE_INTERVAL
from navsim_score.command.submission import Authors, write_submission

EVERY = round(0.5 / POSE_INTERVAL)
POSES = 8
"""Length of a submitted trajectory, at 2 Hz."""


class WriteSubmission(Callback):
    """Writes ``submission.pkl`` in `predict`, from the first answer to each test scene.

    A malformed answer is submitted as standing still, because a submission needs a trajectory for each token. After an
    answer of less than 4 s, the car's position stays at the end of the answer.

    Args:
        authors: what the leaderboard asks for.
        path: by default ``submission.pkl`` in the run's folder.

    Raises:
        UserError: the task is not driving, or (at the end) scenes of the test are missing.
    """

    changes_learning = False

    def __init__(self, authors: Authors, path: str | None = None) -> None:
        self.authors = authors
        self.path = None if path is None else Path(path).expanduser()
        self._plans: dict[str, tuple[bool, Tensor]] = {}

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        if stage == "predict":
            expect_driving(self, pl_module)

    def on_predict_start(self, trainer: Trainer, pl_module: Any) -> None:
        self._plans = {}

    def on_predict_batch_end(
        self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        scenes = outputs["prompts"].columns["scene"]
        # The first answer to each scene, at 2 Hz, which stays at its end.
        poses = pl_module.task.plans(scenes, outputs["rollouts"])[:, 0, EVERY - 1 :: EVERY]  # [scenes, poses, 3]
        ends = poses[:, -1:].expand(-1, POSES - poses.shape[1], -1)
        plans = torch.cat([poses, ends], 1)  # [scenes, POSES, 3]
        for scene, plan in zip(scenes, plans, strict=True):
            self._plans[scene.name] = (scene.synthetic, plan)

    def on_predict_end(self, trainer: Trainer, pl_module: Any) -> None:
        plans_by_process = gather_objects_on_first(self._plans)
        if plans_by_process is None:
            return
        first_stage: dict[str, Tensor] = {}
        second_stage: dict[str, Tensor] = {}
        malformed = 0
        for token, (is_synthetic, plan) in _merge_plans(plans_by_process).items():
            stage = second_stage if is_synthetic else first_stage
            stage[token] = plan.nan_to_num(0)
            malformed += bool(plan.isnan().any())

        scenes = trainer.datamodule.scenes.scenes("test")  # type: ignore[attr-defined]
        keys: Sequence[Any] = getattr(scenes, "keys", [])
        # Generated scenes, which may have no end, have numbers, and no tokens that a leaderboard expects.
        tokens = list(keys) if len(keys) and isinstance(keys[0], str) else None
        path = self.path or run_folder(trainer) / "submission.pkl"
        faults = write_submission(path, self.authors, first_stage, second_stage, tokens)

        notes = ""
        if malformed:
            notes += f"; {malformed} malformed answers stand still"
        if faults:
            notes += f"; {len(faults)} are no drive of a car, but are scored"
        print(
            f"Wrote {len(first_stage)} trajectories of the first stage and {len(second_stage)} of the second to "
            f"{path}{notes}."
        )


def _merge_plans(plans_by_process: Iterable[dict[str, tuple[bool, Tensor]]]) -> dict[str, tuple[bool, Tensor]]:
    """The plans of all processes by token, because processes may plan the same scene."""
    merged: dict[str, tuple[bool, Tensor]] = {}
    for plans in plans_by_process:
        merged |= plans
    return merged
