"""A run's summary: what ran, how it ended, and what was measured."""

from __future__ import annotations

import json
import math
import os
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.utilities import rank_zero_warn

from lightning_cgrpo.callbacks.checkpoints import VALIDATION_MERIT
from lightning_cgrpo.callbacks.closing_card import show_closing_card
from lightning_cgrpo.callbacks.log_writers import run_folder
from lightning_cgrpo.callbacks.run_clock import Clock, machine
from lightning_cgrpo.callbacks.run_manifest import RunManifest
from lightning_cgrpo.callbacks.run_measurements import (
    KeptMeasurements,
    LastUpdates,
    Validated,
    declared_constraints,
    measurement_of,
)
from lightning_cgrpo.core.errors import first_line
from lightning_cgrpo.core.output import SUMMARY, SUMMARY_FORMAT, write_whole
from lightning_cgrpo.core.user_code import raised_by_signal
from lightning_cgrpo.modules.rollout_module import RolloutModule
from lightning_cgrpo.run.reads import listed_in
from lightning_cgrpo.run.record import Best, Inputs, RunRecord

EVERY = 5.0
"""Seconds between two writes."""
FAULTS = "faults/"
SKIPPED = "skipped_steps"


class RunSummary(Callback):
    """Writes ``summary.json`` into the run's folder (docs/reporting.md lists its keys), and prints the closing card.

    The status is ``running``; at the end ``finished``, ``interrupted`` (by a signal, or before the asked updates
    without early stopping) or ``failed``. A resumed run adds to the counts of its earlier part.

    Args:
        identity: settings, seed and length, by which equal runs are recognized; `fit` gives them.
    """

    changes_learning = False

    def __init__(self, identity: Mapping[str, Any] | None = None) -> None:
        self.record = RunRecord(**(identity or {}))
        self._clock = Clock()
        self._written = 0.0
        self._validated = Validated()
        self._last_updates = LastUpdates()
        self._faults: Counter[str] = Counter()
        self._rewards: dict[str, float] | None = None
        self._state: dict[str, Any] | None = None
        """The summary in the checkpoint from which the run resumes."""
        self.path: Path | None = None
        """The file, once training has begun."""

    def on_train_start(self, trainer: Trainer, pl_module: RolloutModule) -> None:
        folder = run_folder(trainer)
        self.path = folder / SUMMARY
        self._declare(trainer, pl_module, folder)

        # What an earlier part of the run counted and measured.
        record = self.record
        before, earlier_folder = _read_resumed(trainer)
        record.resumed = None
        if before is not None and earlier_folder.resolve() != folder.resolve():
            record.resumed = os.path.relpath(earlier_folder, folder)  # relative, so folders may move together
        self._clock.add(before or RunRecord())
        self._faults = Counter(None if before is None else before.faults)
        kept = KeptMeasurements()
        if self._state is not None:
            kept = KeptMeasurements.read(self._state, record.constraints, pl_module.objective.rewards)
        record.measured = kept.measured
        self._validated = kept.validated
        if not getattr(trainer.checkpoint_callback, "best_model_path", ""):
            self._validated.scored.clear()  # of another objective
        self.write(trainer, pl_module)

    def _declare(self, trainer: Trainer, pl_module: RolloutModule, folder: Path) -> None:
        """Record what the run declares, and where it runs."""
        objective = pl_module.objective
        origin = pl_module.policy.origin
        self._rewards = objective.rewards
        record = self.record
        record.status = "running"
        record.error = None
        record.best = None
        record.name = folder.parent.name if trainer.loggers else folder.name
        if record.seed is None:
            record.seed = pl_module.seed
        record.weights = None if origin is None else origin.fingerprint
        record.inputs = _read_inputs(trainer)
        record.constraints = declared_constraints(objective)
        record.look = objective.look
        record.machine = machine(pl_module.device)

    def state_dict(self) -> dict[str, Any]:
        # Not from the file, which may tell of validations after the checkpoint.
        return KeptMeasurements(self.record.measured, self._validated, self._rewards).state()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._state = state_dict

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: RolloutModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if outputs:  # Supervised fine-tuning samples nothing.
            self._clock.answers += pl_module.latest_answers
        metrics = pl_module.latest_metrics
        if self._last_updates.add(trainer.global_step, metrics):
            self._count_faults(metrics)
        if time.monotonic() - self._written > EVERY:
            self.write(trainer, pl_module)

    def _count_faults(self, metrics: Mapping[str, float]) -> None:
        """Count the skipped steps, and for each other fault the updates in which it occurred."""
        for tag, value in metrics.items():
            if tag.startswith(FAULTS) and value > 0:
                name = tag.removeprefix(FAULTS)
                self._faults[name] += int(value) if name == SKIPPED else 1

    def on_validation_end(self, trainer: Trainer, pl_module: RolloutModule) -> None:
        if trainer.state.fn != "fit" or "val" not in pl_module.evaluations or trainer.sanity_checking:
            return
        last = measurement_of(pl_module.objective, pl_module.evaluations["val"], trainer.global_step)
        self.record.measured["last"] = last
        monitor = getattr(trainer.checkpoint_callback, "monitor", None) or ""
        metric = trainer.callback_metrics.get(monitor)
        score = None if metric is None else float(metric)
        rank = score
        if score is not None and monitor == VALIDATION_MERIT:
            rank = float(trainer.global_step)  # by merit, `Checkpoints` ranks a policy by its update
        self._validated.add(last, rank, score)

    def on_train_end(self, trainer: Trainer, pl_module: RolloutModule) -> None:
        self.write(trainer, pl_module, "interrupted" if ended_early(trainer) else "finished")

    def on_exception(self, trainer: Trainer, pl_module: RolloutModule, exception: BaseException) -> None:
        if self.path is None:
            return
        if raised_by_signal(exception):
            self.record.error = None
            status = "interrupted"
        else:
            self.record.error = f"{type(exception).__name__}: {first_line(exception)}"
            status = "failed"
        self.write(trainer, pl_module, status)
        self.show(trainer, pl_module)

    def teardown(self, trainer: Trainer, pl_module: RolloutModule, stage: str) -> None:
        # Not in `on_train_end`, which precedes the last checkpoint.
        if stage != "fit":
            return
        before, folder = _read_resumed(trainer)
        if self.path is None and before is not None and trainer.is_global_zero:  # no update was left
            print(
                f"The run is finished, with {trainer.global_step:,} updates. Try a larger --trainer.max_steps for more."
            )
            self.record = before
            self.path = folder / SUMMARY
        self.show(trainer, pl_module)

    def show(self, trainer: Trainer, pl_module: RolloutModule) -> None:
        """Print the closing card of a run that began."""
        if not trainer.is_global_zero or self.path is None:
            return
        data = getattr(trainer, "datamodule", None)
        test_prompts = " --data.test_path=FILE" if getattr(data, "needs_test_path", False) else ""
        exports = hasattr(pl_module.policy, "save_pretrained")
        show_closing_card(self.record, self.path.parent, test_prompts, exports)

    def write(self, trainer: Trainer, pl_module: RolloutModule, status: str = "running") -> None:
        """Bring `record` up to date, and write the file."""
        if not trainer.is_global_zero or self.path is None:
            return
        record = self.record
        record.status = status
        record.updates = trainer.global_step
        record.asked = updates_asked(trainer)
        record.faults = dict(self._faults)
        record.held = getattr(pl_module, "held", None)
        self._clock.write(record)
        # Measurements before, during and at the end of training, and of the best checkpoint.
        measured = record.measured
        if "initial" in pl_module.evaluations and "before" not in measured:
            measured["before"] = measurement_of(pl_module.objective, pl_module.evaluations["initial"], 0)
        if self._last_updates:
            measured["end"] = self._last_updates.measured(pl_module.objective)
        if "last" in measured:
            # Rates that the run reached, and the reward that it had there.
            record.validations = self._validated.all
        callback: Any = trainer.checkpoint_callback
        rank = getattr(callback, "best_model_score", None)
        if rank is not None and callback.best_model_path and float(rank) in self._validated.scored:
            measured["best"], score = self._validated.scored[float(rank)]
            checkpoint = _find_checkpoint(callback.best_model_path, trainer.ckpt_path)
            record.best = Best(os.path.relpath(checkpoint, self.path.parent), callback.monitor, score)
        self._written = time.monotonic()
        self.save(self.path)

    def save(self, path: Path) -> None:
        """Write `record`."""
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            write_whole(path, json.dumps(self.record.as_json(), indent=1) + "\n")
        except OSError as error:  # of a full disk, whose error in a checkpoint says more
            rank_zero_warn(f"The summary '{path}' can't be written: {first_line(error)}.")


def _read_inputs(trainer: Trainer) -> Inputs:
    """Fingerprints of the user's code, of the prompts, and of listed files; none without a `RunManifest`."""
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, RunManifest) and callback.manifest is not None:
            manifest = callback.manifest
            readable = manifest.readable()
            listed = listed_in(manifest.settings or {})
            files = {name: manifest.files[name] for name in listed if name in manifest.files}
            return Inputs(readable["code"], readable["prompts"], files)
    return Inputs()


def _read_resumed(trainer: Trainer) -> tuple[RunRecord | None, Path]:
    """The record of the checkpoint's run, None without one, and the folder of that run."""
    folder = Path(trainer.ckpt_path or "").parent.parent
    if not trainer.ckpt_path:
        return None, folder
    try:
        content = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
        if not isinstance(content, dict) or content.get("format") != SUMMARY_FORMAT:
            return None, folder
        return RunRecord.read(content), folder
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # no file, or a damaged one
        return None, folder


def _find_checkpoint(checkpoint: str, resumed_from: Any) -> str:
    """The path of an earlier checkpoint, which may have moved with the checkpoint that the run resumed from."""
    if not resumed_from or os.path.exists(checkpoint):
        return checkpoint
    moved = os.path.join(os.path.dirname(resumed_from), os.path.basename(checkpoint))
    return moved if os.path.exists(moved) else checkpoint


def ended_early(trainer: Trainer) -> bool:
    """True if training made fewer updates than asked, and neither a callback nor a time limit ended it."""
    asked = updates_asked(trainer)
    return asked is not None and trainer.global_step < asked and not trainer.should_stop


def updates_asked(trainer: Trainer) -> int | None:
    """Updates to make; None if only time or a callback ends the run."""
    total = trainer.estimated_stepping_batches
    return int(total) if math.isfinite(total) else None
