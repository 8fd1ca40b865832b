"""A run's summary: what ran, how it ended, and what was measured."""

from __future__ import annotations

import json
import math
import os
import platform
import resource
import sys
import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.utilities import rank_zero_warn

from lightning_cgrpo.callbacks.checkpoints import VALIDATION_MERIT
from lightning_cgrpo.callbacks.closing_card import show_closing_card
from lightning_cgrpo.callbacks.log_writers import run_folder
from lightning_cgrpo.callbacks.run_manifest import RunManifest
from lightning_cgrpo.core.distributed import world
from lightning_cgrpo.core.errors import first_line
from lightning_cgrpo.core.output import SUMMARY, SUMMARY_FORMAT, write_whole
from lightning_cgrpo.core.user_code import raised_by_signal
from lightning_cgrpo.modules.rollout_module import RolloutModule
from lightning_cgrpo.objective.chance import chance_of, shown_targets
from lightning_cgrpo.objective.measurement import Evaluation
from lightning_cgrpo.objective.objective import Objective

END = 1 / 8
"""Share of the updates over which the values at the end of training are means."""
EVERY = 5.0
"""Seconds between two writes."""
BOUND = ("kind", "direction", "threshold")
KEPT = ("before", "last")
"""Measurements that a resumed run continues with."""
SPENT = ("answers", "seconds", "cpu_seconds", "peak_mb")
FAULTS, SKIPPED = "faults/", "skipped_steps"

Record = dict[str, Any]


class RunSummary(Callback):
    """Writes ``summary.json`` into the run's folder (docs/reporting.md lists its keys), and prints the closing card.

    The status is ``running``; at the end ``finished``, ``interrupted`` (by a signal, or before the asked updates
    without early stopping) or ``failed``. A resumed run adds to the counts of its earlier part.

    Args:
        identity: settings, seed and length, by which equal runs are recognized; `fit` gives them.
    """

    changes_learning = False

    def __init__(self, identity: Mapping[str, Any] | None = None) -> None:
        self._began, self._written = time.monotonic(), 0.0
        self.record: Record = {"method": {}, "length": {}, **(identity or {})}
        self._scored: dict[float, Record] = {}
        """Validations by the number that ranks checkpoints, with the monitored metric as their score."""
        self._validated: dict[int, Record] = {}
        """Validations by update: reward and constraints' values."""
        self._rewards: dict[str, float] | None = None
        """Weights of the reward's signals, by which a resumed run knows its reward."""
        self._before: Record = {}
        """The measurements of the run up to the checkpoint that it resumes from."""
        self._ends: deque[tuple[int, Mapping[str, float]]] = deque()
        self.path: Path | None = None
        """The file, once training has begun."""

    def on_train_start(self, trainer: Trainer, pl_module: RolloutModule) -> None:
        here = run_folder(trainer)
        self.path = here / SUMMARY
        before, there = _resumed(trainer)
        if not getattr(trainer.checkpoint_callback, "best_model_path", ""):
            self._scored.clear()  # of another objective
        rewards = pl_module.objective.rewards
        if self._rewards not in (None, rewards):  # Another reward is not compared with this one.
            self._validated.clear()
            self._before = {}
        self._rewards = rewards
        self._spent = {key: before.get(key) or 0 for key in SPENT}
        self._faults: Counter[str] = Counter(before.get("faults"))
        origin = pl_module.policy.origin
        seed = self.record.get("seed")
        self.record = {
            "format": SUMMARY_FORMAT,
            "status": "running",
            "error": None,
            "name": here.parent.name if trainer.loggers else here.name,
            **self.record,
            "seed": pl_module.seed if seed is None else seed,
            "weights": None if origin is None else origin.fingerprint,
            "inputs": _inputs(trainer),
            # Relative, so that folders may move together.
            "resumed": os.path.relpath(there, here) if before and there.resolve() != here.resolve() else None,
            "constraints": declared(pl_module.objective),
            **({} if pl_module.objective.look is None else {"look": asdict(pl_module.objective.look)}),
            "machine": machine(pl_module.device),
            "measured": dict(self._before),
            "best": None,
        }
        self.write(trainer, pl_module)

    def state_dict(self) -> dict[str, Any]:
        # Not from the file, which may tell of validations after the checkpoint.
        measured = self.record.get("measured", {})
        return {
            "measured": {key: measured[key] for key in KEPT if key in measured},
            "scored": dict(self._scored),
            "validated": dict(self._validated),
            "rewards": self._rewards,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._before = state_dict["measured"]
        self._scored = state_dict["scored"]
        self._validated = state_dict.get("validated", {})  # since November 28, 2026, as the rewards
        self._rewards = state_dict.get("rewards")

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: RolloutModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if outputs:  # Supervised fine-tuning samples nothing.
            self._spent["answers"] += len(batch) * pl_module.group_size * world()[1]
        metrics, update = pl_module.latest_metrics, trainer.global_step
        if metrics and (not self._ends or metrics is not self._ends[-1][1]):
            faults = {tag.removeprefix(FAULTS): value for tag, value in metrics.items() if tag.startswith(FAULTS)}
            self._faults.update({name: int(n) if name == SKIPPED else 1 for name, n in faults.items() if n > 0})
            self._ends.append((update, metrics))
            while self._ends[0][0] <= update * (1 - END):
                self._ends.popleft()
        if time.monotonic() - self._written > EVERY:
            self.write(trainer, pl_module)

    def on_validation_end(self, trainer: Trainer, pl_module: RolloutModule) -> None:
        if trainer.state.fn == "fit" and "val" in pl_module.evaluations and not trainer.sanity_checking:
            last = measured(pl_module.objective, pl_module.evaluations["val"], trainer.global_step)
            self.record["measured"]["last"] = last
            self._validated[trainer.global_step] = last
            monitor = getattr(trainer.checkpoint_callback, "monitor", None) or ""
            score = trainer.callback_metrics.get(monitor)
            if score is not None:
                # By merit, `Checkpoints` ranks a policy by its update.
                rank = float(trainer.global_step if monitor == VALIDATION_MERIT else score)
                # Of equal validations, the first has the checkpoint.
                self._scored.setdefault(rank, {**last, "score": float(score)})

    def on_train_end(self, trainer: Trainer, pl_module: RolloutModule) -> None:
        self.write(trainer, pl_module, "interrupted" if ended_early(trainer) else "finished")

    def on_exception(self, trainer: Trainer, pl_module: RolloutModule, exception: BaseException) -> None:
        if self.path is None:
            return
        wanted = raised_by_signal(exception)
        self.record["error"] = None if wanted else f"{type(exception).__name__}: {first_line(exception)}"
        self.write(trainer, pl_module, "interrupted" if wanted else "failed")
        self.show(trainer, pl_module)

    def teardown(self, trainer: Trainer, pl_module: RolloutModule, stage: str) -> None:
        # Not in `on_train_end`, which precedes the last checkpoint.
        if stage != "fit":
            return
        before, there = _resumed(trainer)
        if self.path is None and before and trainer.is_global_zero:  # no update was left
            done = f"{trainer.global_step:,} updates"
            print(f"The run is finished, with {done}. Try a larger --trainer.max_steps for more.")
            self.record, self.path = before, there / SUMMARY
        self.show(trainer, pl_module)

    def show(self, trainer: Trainer, pl_module: RolloutModule) -> None:
        """Print the closing card of a run that began."""
        if not trainer.is_global_zero or self.path is None:
            return
        data = getattr(trainer, "datamodule", None)
        lacking = " --data.test_path=FILE" if getattr(data, "needs_test_path", False) else ""
        exports = hasattr(pl_module.policy, "save_pretrained")
        show_closing_card(self.record, self.path.parent, lacking, exports)

    def write(self, trainer: Trainer, pl_module: RolloutModule, status: str = "running") -> None:
        """Bring `record` up to date, and write the file."""
        if not trainer.is_global_zero or self.path is None:
            return
        shown = self.record["measured"]
        if "initial" in pl_module.evaluations:
            shown.setdefault("before", measured(pl_module.objective, pl_module.evaluations["initial"], 0))
        if self._ends:
            shown["end"] = _end(pl_module.objective, self._ends)
        if "last" in shown:
            # Rates that the run reached, and the reward that it had there.
            self.record["validations"] = [of for _, of in sorted(self._validated.items())]
        self.record["held"] = getattr(pl_module, "held", None)
        callback: Any = trainer.checkpoint_callback
        score = getattr(callback, "best_model_score", None)
        if score is not None and callback.best_model_path and float(score) in self._scored:
            shown["best"] = dict(self._scored[float(score)])
            score = shown["best"].pop("score", score)  # Versions before November 27, 2026 kept the rank alone.
            checkpoint = os.path.relpath(_found(callback.best_model_path, trainer.ckpt_path), self.path.parent)
            self.record["best"] = {"checkpoint": checkpoint, "monitor": callback.monitor, "score": float(score)}
        usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        cpu = sum(one.ru_utime + one.ru_stime for one in usage)
        peak = max(one.ru_maxrss for one in usage) / (2**20 if sys.platform == "darwin" else 2**10)
        self.record |= {
            "status": status,
            "updates": trainer.global_step,
            "asked": updates_asked(trainer),
            "answers": self._spent["answers"] or None,
            "seconds": round(self._spent["seconds"] + time.monotonic() - self._began, 1),
            "cpu_seconds": round(self._spent["cpu_seconds"] + cpu, 1),
            "peak_mb": round(max(self._spent["peak_mb"], peak)),
            "faults": dict(self._faults),
        }
        self._written = time.monotonic()
        self.save(self.path)

    def save(self, path: Path) -> None:
        """Write `record`."""
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            write_whole(path, json.dumps(self.record, indent=1) + "\n")
        except OSError as error:  # of a full disk, whose error in a checkpoint says more
            rank_zero_warn(f"The summary '{path}' can't be written: {first_line(error)}.")


def declared(objective: Objective) -> Record:
    """The bound and role of each constraint, and its condition, if it has one."""
    records = {}
    for name, constraint in objective.constraints.items():
        records[name] = {**{key: getattr(constraint.bound, key) for key in BOUND}, "role": constraint.role}
        if constraint.given is not None:
            records[name]["given"] = constraint.given
    return records


def measured(objective: Objective, evaluation: Evaluation, update: int) -> Record:
    """An evaluation's reward with its standard error, and each constraint's value with its interval."""
    shown: Record = {}
    for name, rate in evaluation.rates.items():
        bound = objective.constraints[name].bound
        low, high = bound.interval(rate)
        shown[name] = {"value": bound.shown(rate.rate), "low": low, "high": high, "side": bound.word(rate)}
    reward, error = (found.get("reward/mean") for found in (evaluation.metrics, evaluation.standard_errors))
    counts = {"update": update, "prompts": evaluation.prompts, "answers": evaluation.answers}
    record = {**counts, "reward": {"value": reward, "error": error}, "constraints": shown}
    if objective.look is not None:
        record["targets"] = shown_targets(objective, evaluation)
        chance = asdict(chance_of(objective.look, objective.decided, evaluation))
        # As in JSON, whose keys are texts.
        record["chance"] = chance | {"more": {str(prompts): of for prompts, of in chance["more"].items()}}
    return record


def machine(device: torch.device) -> Record:
    """This machine and its versions."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": models[0] if models else platform.processor(),
        "cores": os.cpu_count(),
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "lightning")},
    }


def _inputs(trainer: Trainer) -> Record:
    """Fingerprints of the user's code and of the prompts, by module and by split; {} without a `RunManifest`."""
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, RunManifest) and callback.manifest is not None:
            readable = callback.manifest.readable()
            return {"code": readable["code"], "prompts": readable["prompts"]}
    return {}


def _resumed(trainer: Trainer) -> tuple[Record, Path]:
    """The summary of the checkpoint's run, {} without one, and the folder of that run."""
    folder = Path(trainer.ckpt_path or "").parent.parent
    if not trainer.ckpt_path:
        return {}, folder
    try:
        record = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}, folder
    own = isinstance(record, dict) and record.get("format") == SUMMARY_FORMAT
    # A file of another origin, or a damaged one, has other values.
    whole = own and isinstance(record.get("faults"), dict)
    whole = whole and all(isinstance(record.get(key), (int, float, type(None))) for key in SPENT)
    return (record if whole else {}), folder


def _found(checkpoint: str, resumed_from: Any) -> str:
    """The path of an earlier checkpoint, which may have moved with the checkpoint that the run resumed from."""
    moved = os.path.join(os.path.dirname(resumed_from or ""), os.path.basename(checkpoint))
    return moved if resumed_from and not os.path.exists(checkpoint) and os.path.exists(moved) else checkpoint


def _end(objective: Objective, logged: deque[tuple[int, Mapping[str, float]]]) -> Record:
    """Means over the logged updates of the last part of training, as far as this process trained it."""

    def mean(tag: str) -> Record:
        values = [metrics[tag] for _, metrics in logged if tag in metrics]
        return {"value": sum(values) / len(values) if values else None}

    constraints = {name: mean(constraint.bound.tag(name)) for name, constraint in objective.constraints.items()}
    weights = {name: mean(f"multiplier/{name}")["value"] for name in objective.weight_names}
    return {
        "update": logged[-1][0],
        "reward": mean("reward/mean"),
        "constraints": constraints,
        "weights": {name: weight for name, weight in weights.items() if weight is not None},
    }


def ended_early(trainer: Trainer) -> bool:
    """True if training made fewer updates than asked, and neither a callback nor a time limit ended it."""
    asked = updates_asked(trainer)
    return asked is not None and trainer.global_step < asked and not trainer.should_stop


def updates_asked(trainer: Trainer) -> int | None:
    """Updates to make; None if only time or a callback ends the run."""
    total = trainer.estimated_stepping_batches
    return int(total) if math.isfinite(total) else None
