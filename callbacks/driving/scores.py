"""Official driving scores: mean EPDMS in validation, all columns in a test."""

from __future__ import annotations

import json
import math
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer

from lightning_cgrpo.callbacks.log_writers import run_folder
from lightning_cgrpo.core.distributed import gather_objects, gather_objects_on_first
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.tasks.driving.answers import POSE_INTERVAL
from lightning_cgrpo.tasks.driving.task import DrivingTask
from navsim_score.dialects import DIALECTS, Epdms
from navsim_score.evaluation import BASELINES, drives, planned_drives
from navsim_score.scorer import Scores
from navsim_score.tables import show_stages
from navsim_score.traffic.reactive import Reactive
from navsim_score.traffic.traffic import TrafficPolicy
from navsim_score.two_stage import Drive, Result, summaries, summary

POLICY = "policy"


class DrivingScores(Callback):
    """Scores answers as NAVSIM does, by default as in two stages: reactive traffic, human filter; unlike the training.

    A validation logs the mean EPDMS (``val/epdms``). A test shows and writes the paper's columns, of both stages with
    follow-ups. Malformed answers count as 0, but not in ADE. EPDMS includes extended comfort only if a scene names
    another test scene as `previous`.

    The devkit's script for one stage replays the log and leaves out failed answers:
    ``--callbacks.scores.traffic=LogReplay --callbacks.scores.dialect=epdms_valid``.

    Args:
        traffic: behavior of agents, by default `Reactive`.
        dialect: version of the score, a key of `navsim_score.dialects.DIALECTS`; `pdms` is that of NAVSIM 1.1.
        references: also score PDM-Closed, constant velocity, human.
        path: JSON file, by default ``scores.json`` in the tested run's folder: ``drivers`` by name (``stage_one``,
            ``stage_two``, ``both``), and ``scenes``, each driver's EPDMS of the first stage and of both, by scene.

    Raises:
        UserError: an unknown dialect, or (at the start) the task is not driving.
    """

    changes_learning = False

    def __init__(
        self,
        references: bool = True,
        path: str | None = None,
        traffic: TrafficPolicy | None = None,
        dialect: str = "epdms",
    ) -> None:
        if dialect not in DIALECTS:
            raise UserError(f"Expected dialect to be one of {', '.join(DIALECTS)}, but got '{dialect}'.")
        self.traffic: TrafficPolicy = Reactive() if traffic is None else traffic
        self.dialect = DIALECTS[dialect]
        self.path = None if path is None else Path(path)
        self.references = dict(BASELINES) if references else {}
        self._drives: dict[str, list[Drive]] = {}

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        if stage != "predict":
            expect_driving(self, pl_module)

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:
        self._drives = {POLICY: []}

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if outputs["prompts"].columns["scene"]:
            self._add_drives(pl_module.task, outputs, None)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        drives_by_process = gather_objects(self._drives[POLICY])
        self._drives = {}
        result = summary(list(chain.from_iterable(drives_by_process)), self.dialect, self.traffic)
        if result.first.scenes:
            pl_module.log("val/epdms", result.first.columns["EPDMS"], prog_bar=True, rank_zero_only=True)

    def on_test_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:
        self._drives = {name: [] for name in (POLICY, *self.references)}

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        columns = outputs["prompts"].columns
        follows = columns.get("follows")
        # A second dataloader without follow-ups has training scenes.
        if not columns["scene"] or (dataloader_idx and follows is None):
            return
        self._add_drives(pl_module.task, outputs, follows)

    def _add_drives(self, task: DrivingTask, outputs: Any, follows: Any) -> None:
        """Add the drives of a batch's answers, and in a test those of the reference drivers."""
        prompts = outputs["prompts"]
        scored_answers = outputs["rollouts"].info["drives"]
        if not scored_answers:
            return
        scenes = prompts.columns["scene"]
        numbers = prompts.index.tolist()
        poses = torch.stack([answers.poses for answers in scored_answers])  # [scenes, answers, poses, 3]
        scores = Scores.cat([answers.scores for answers in scored_answers])
        references = {name: planner for name, planner in self.references.items() if name in self._drives}

        # The task's own scores are those of the dialect if they were computed in the same way.
        filters_human = isinstance(self.dialect, Epdms) and self.dialect.human_filter.columns
        task_scores_hold = filters_human and task.human_filter and task.traffic == self.traffic
        if references or not task_scores_hold:
            scorer = self.dialect.scorer(scenes, self.traffic, prompts.columns.get("plan"))
            if not task_scores_hold:
                scene_rows = torch.arange(len(scenes)).repeat_interleave(poses.shape[1])
                scores = scorer(poses.flatten(0, 1), scene_rows, POSE_INTERVAL)
            reference_drives = planned_drives(scorer, references, numbers, follows, self.dialect)
            for name, driven in reference_drives.items():
                self._drives[name] += driven
        self._drives[POLICY] += drives(scenes, scores, poses, POSE_INTERVAL, numbers, follows, self.dialect)

    def on_test_end(self, trainer: Trainer, pl_module: Any) -> None:
        drives_by_process = gather_objects_on_first(self._drives)
        self._drives = {}
        path = run_folder(trainer) / "scores.json" if self.path is None else self.path
        if drives_by_process is None:
            return
        all_drives: dict[str, list[Drive]] = {name: [] for name in drives_by_process[0]}
        for drives_of_process in drives_by_process:
            for name in all_drives:
                all_drives[name] += drives_of_process[name]
        results = summaries(all_drives, self.dialect, self.traffic)
        results = {name: result for name, result in results.items() if result.first.scenes}
        show_stages(results)
        content = {
            "drivers": {name: result.as_json() for name, result in results.items()},
            "scenes": {name: _scores_by_scene(result) for name, result in results.items()},
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=1, allow_nan=False), encoding="utf-8")
        print(f"Wrote {path}.")


def _scores_by_scene(result: Result) -> dict[str, list[float | None]]:
    """EPDMS of the first stage and of both, by scene; None where all answers failed, because JSON lacks NaN."""
    by_scene: dict[str, list[float | None]] = {}
    for scene, (first_stage, both_stages) in result.by_scene.items():
        by_scene[scene] = [_none_for_nan(first_stage), _none_for_nan(both_stages)]
    return by_scene


def _none_for_nan(score: float | None) -> float | None:
    if score is None or math.isnan(score):
        return None
    return score


def expect_driving(callback: Callback, pl_module: Any) -> None:
    """Raise a `UserError` for other tasks than driving."""
    if not isinstance(pl_module.task, DrivingTask):
        raise UserError(
            f"Expected the task of {type(callback).__name__} to be DrivingTask, but got "
            f"{type(pl_module.task).__name__}, try without this callback."
        )
