"""Official driving scores: mean EPDMS in validation, all columns in a test."""

from __future__ import annotations

import json
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
from navsim_score.two_stage import Drive, summaries, summary

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
            self._score(pl_module.task, outputs, None)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        everywhere = gather_objects(self._drives[POLICY])
        self._drives = {}
        result = summary([drive for part in everywhere for drive in part], self.dialect, self.traffic)
        if result.first.scenes:
            pl_module.log("val/epdms", result.first.columns["EPDMS"], prog_bar=True, rank_zero_only=True)

    def on_test_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:
        self._drives = {name: [] for name in (POLICY, *self.references)}

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        columns = outputs["prompts"].columns
        scenes, follows = columns["scene"], columns.get("follows")
        # A second dataloader without follow-ups has training scenes.
        if not scenes or (dataloader_idx and follows is None):
            return
        self._score(pl_module.task, outputs, follows)

    def _score(self, task: DrivingTask, outputs: Any, follows: Any) -> None:
        """Add the drives of a batch's answers, and in a test those of the reference drivers."""
        prompts, scored = outputs["prompts"], outputs["rollouts"].info["drives"]
        if not scored:
            return
        scenes, numbers = prompts.columns["scene"], prompts.index.tolist()
        references = {name: planner for name, planner in self.references.items() if name in self._drives}
        poses = torch.stack([answers.poses for answers in scored])
        scores = Scores.cat([answers.scores for answers in scored])
        # The task's own scores are those of the dialect if they were computed in the same way.
        filtered = isinstance(self.dialect, Epdms) and self.dialect.human_filter.columns
        same = filtered and task.human_filter and task.traffic == self.traffic
        if references or not same:
            scorer = self.dialect.scorer(scenes, self.traffic, prompts.columns.get("plan"))
            if not same:
                row = torch.arange(len(scenes)).repeat_interleave(poses.shape[1])
                scores = scorer(poses.flatten(0, 1), row, POSE_INTERVAL)
            for name, driven in planned_drives(scorer, references, numbers, follows, self.dialect).items():
                self._drives[name] += driven
        self._drives[POLICY] += drives(scenes, scores, poses, POSE_INTERVAL, numbers, follows, self.dialect)

    def on_test_end(self, trainer: Trainer, pl_module: Any) -> None:
        everywhere = gather_objects_on_first(self._drives)
        self._drives = {}
        path = run_folder(trainer) / "scores.json" if self.path is None else self.path
        if everywhere is None:
            return
        drives_of = {name: [drive for part in everywhere for drive in part[name]] for name in everywhere[0]}
        results = summaries(drives_of, self.dialect, self.traffic)
        results = {name: result for name, result in results.items() if result.first.scenes}
        show_stages(results)
        by_scene = {  # NaN where all answers failed, which JSON lacks
            name: {scene: [None if x != x else x for x in pair] for scene, pair in result.by_scene.items()}
            for name, result in results.items()
        }
        written = {"drivers": {name: result.as_json() for name, result in results.items()}, "scenes": by_scene}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(written, indent=1, allow_nan=False), encoding="utf-8")
        print(f"Wrote {path}.")


def expect_driving(callback: Callback, pl_module: Any) -> None:
    """Raise a `UserError` for other tasks than driving."""
    if not isinstance(pl_module.task, DrivingTask):
        raise UserError(
            f"Expected the task of {type(callback).__name__} to be DrivingTask, but got "
            f"{type(pl_module.task).__name__}, try without this callback."
        )
