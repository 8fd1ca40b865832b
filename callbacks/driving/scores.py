"""How well a policy drives, by the official score: in validation, and in the columns of the paper's table in a test."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, Trainer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from lightning_cgrpo.callbacks.run_folder import run_folder
from lightning_cgrpo.distributed import gathered
from lightning_cgrpo.errors import UserError
from lightning_cgrpo.navsim.baselines import REFERENCES
from lightning_cgrpo.navsim.evaluation import Drive, Result, Stage, as_json, drives, planned_drives, summary
from lightning_cgrpo.navsim.scorer import Scorer
from lightning_cgrpo.navsim.traffic.reactive import Reactive
from lightning_cgrpo.navsim.traffic.traffic import TrafficPolicy
from lightning_cgrpo.tasks.completions import texts
from lightning_cgrpo.tasks.driving.answers import POSE_INTERVAL
from lightning_cgrpo.tasks.driving.task import DrivingTask

POLICY = "policy"
SHOWN = ("NC", "DAC", "DDC", "TLC", "EP", "HC", "EPDMS", "ADE@4s")


class DrivingScores(Callback):
    """Scores answers as NAVSIM v2 does, not as in training: a test's in the paper's columns, shown and written, and a
    validation's as one number, the mean EPDMS (tag ``val/epdms``).

    With follow-ups (of `NavsimDataModule`, or that scenes name) there are both stages, see `tasks.driving.evaluation`.
    All are means over answers, malformed ones as 0; ADE leaves these out. EPDMS is the /14 form where a scene doesn't
    name one of the test as `previous`. Others drive the same scenes, too: PDM-Closed, constant velocity, and the human.

    Args:
        traffic: how the others behave; by default vehicles react, as officially.
        human_filter: what the human fails isn't held against the policy, in scenes with a human.
        references: whether those others drive.
        path: of the JSON file: by driver ``stage_one``, ``stage_two``, and ``both``, in all sub-scores; by default
            ``scores.json`` in the folder of the run whose checkpoint is tested.

    Raises:
        UserError: (at the start) if the task isn't driving.
    """

    def __init__(
        self,
        traffic: TrafficPolicy | None = None,
        human_filter: bool = True,
        references: bool = True,
        path: str | None = None,
    ) -> None:
        self.traffic: TrafficPolicy = Reactive() if traffic is None else traffic
        self.human_filter = human_filter
        self.path = None if path is None else Path(path)
        self.references = dict(REFERENCES) if references else {}
        self._drives: dict[str, list[Drive]] = {}

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        if stage != "predict" and not isinstance(pl_module.task, DrivingTask):
            raise UserError(
                f"Expected the task of DrivingScores to be DrivingTask, but got {type(pl_module.task).__name__}; "
                "remove the callback."
            )

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:
        self._drives = {POLICY: []}

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if outputs["prompts"].columns["scene"]:
            self._drive(pl_module.task, outputs, None)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        everywhere = gathered(self._drives[POLICY])
        self._drives = {}
        found = summary([drive for part in everywhere for drive in part])
        if found.first.scenes:
            pl_module.log("val/epdms", found.first.columns["EPDMS"], prog_bar=True, rank_zero_only=True)

    def on_test_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:
        self._drives = {name: [] for name in (POLICY, *self.references)}

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        columns = outputs["prompts"].columns
        scenes, follows = columns["scene"], columns.get("follows")
        # The second one, if it isn't of follow-ups, is of training scenes.
        if not scenes or (dataloader_idx and follows is None):
            return
        scorer = self._drive(pl_module.task, outputs, follows)
        numbers = outputs["prompts"].index.tolist()
        for name, found in planned_drives(scorer, self.references, numbers, follows).items():
            self._drives[name] += found

    def _drive(self, task: DrivingTask, outputs: Any, follows: Any) -> Scorer:
        """Drive the policy's answers; returns what scored them."""
        scenes = outputs["prompts"].columns["scene"]
        poses = task.answer.trajectories([text for group in texts(outputs["rollouts"]) for text in group])
        scorer = Scorer(scenes, self.traffic, plans=task.plans(scenes), human_filter=self.human_filter)
        numbers, rows = outputs["prompts"].index.tolist(), list(range(len(scenes)))
        plans = poses.unflatten(0, (len(scenes), -1))
        self._drives[POLICY] += drives(scorer, rows, plans, POSE_INTERVAL, numbers, follows)
        return scorer

    def on_test_end(self, trainer: Trainer, pl_module: Any) -> None:
        everywhere = gathered(self._drives)
        self._drives = {}
        path = run_folder(trainer) / "scores.json" if self.path is None else self.path
        if not trainer.is_global_zero:
            return
        results = {name: summary([drive for part in everywhere for drive in part[name]]) for name in everywhere[0]}
        results = {name: result for name, result in results.items() if result.first.scenes}
        table = scores_table(results)
        console = Console()
        needed = console.measure(table, options=console.options.update(width=1000)).minimum
        # Rather lines that the terminal breaks than columns without their ends.
        Console(width=max(console.width, needed)).print(table)
        written = {
            "traffic": type(self.traffic).__name__,
            "human_filter": self.human_filter,
            "drivers": {name: as_json(result) for name, result in results.items()},
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(written, indent=1, allow_nan=False), encoding="utf-8")
        print(f"Wrote {path}.")


def scores_table(results: Mapping[str, Result]) -> Table:
    """Stages are rows; a driver's EPDMS over both is the last one."""
    caption = "means over answers, malformed ones as 0; stage 2 is weighted by how near it starts to where plans end"
    table = Table(title="Driving", caption=caption, box=SIMPLE_HEAD, padding=0)
    table.title_justify = table.caption_justify = "left"
    table.add_column(no_wrap=True)
    for head in ("", "scenes", "mal-\nformed", *SHOWN[:-1], "ADE\n@4s"):
        table.add_column(head, justify="right", no_wrap=True)
    for name, result in results.items():
        table.add_row(name.replace(" ", "\n"), "S1", str(result.first.scenes), *_cells(result.first))
        if result.second is not None:
            table.add_row("", "S2", str(result.second.scenes), *_cells(result.second))
            empty = [""] * (SHOWN.index("EPDMS") + 1)
            table.add_row("", "both", str(result.scenes), *empty, _number(result.epdms))
    return table


def _cells(stage: Stage) -> list[str]:
    return [f"{stage.malformed:.3f}", *(_number(stage.columns[name]) for name in SHOWN)]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
