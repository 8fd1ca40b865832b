"""Check of the metrics that EarlyStopping and `Checkpoints` monitor."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

from lightning_cgrpo.errors import UserError, did_you_mean
from lightning_cgrpo.objective.merit import MERIT
from lightning_cgrpo.objective.objective import Objective

VALIDATION = "val/"
COUNTERS = ("epoch", "step")
TIMES = ("time/", "throughput/")
"""Prefixes of metrics that differ between equal runs."""


def check_monitors(trainer: Trainer, objective: Objective, validated: bool) -> None:
    """Compare monitored metrics with the run's metrics, after an update or a validation (`validated`)."""
    validates = sum(trainer.num_val_batches) > 0
    there = {name for name in trainer.callback_metrics if not name.startswith(TIMES)}
    there |= {f"{VALIDATION}{name}" for name in _measured(objective) if validates}
    optional = _optional(objective)
    known = {*trainer.callback_metrics, *there, *optional, *COUNTERS}
    known |= {f"{VALIDATION}{name}" for name in optional if validates}
    known.add(f"{VALIDATION}{MERIT}")  # without validation, `Checkpoints` keeps the newest checkpoint
    for callback in trainer.callbacks:  # type: ignore[attr-defined] # set by Lightning's callback connector
        name = callback.monitor if isinstance(callback, (EarlyStopping, ModelCheckpoint)) else None
        if name is None or name in known:
            continue
        # A user's callback may log any other name later.
        misspelled = bool(difflib.get_close_matches(name, known, n=1, cutoff=0.85))
        decided = validated or not validates
        if misspelled or (decided and (name.startswith(VALIDATION) or _asks_within_epochs(trainer, callback))):
            raise UserError(
                f"Expected {type(callback).__name__} to monitor a metric of this run, but got '{name}'."
                f"{did_you_mean(name, known)} Try one of {', '.join(sorted(there))}."
            )


def _measured(objective: Objective) -> list[str]:
    return [MERIT, "reward/mean", *(c.tag(name) for name, c in objective.constraints.items()), "rollout/length"]


def _optional(objective: Objective) -> list[str]:
    families: dict[str, Iterable[str]] = {
        "rate": [name for name, c in objective.constraints.items() if not c.bound.of_mean],
        "mean": objective.means,
        "reward": objective.rewards,
        "effective_weight": objective.component_names,
        "faults": objective.signal_names,
        "inapplicable": objective.signal_names,
    }
    return ["reward/mean", *(f"{family}/{name}" for family, names in families.items() for name in names)]


def _asks_within_epochs(trainer: Trainer, callback: Callback) -> bool:
    if isinstance(callback, ModelCheckpoint):
        return callback._every_n_train_steps > 0 or not callback._should_save_on_train_epoch_end(trainer)
    return isinstance(callback, EarlyStopping) and callback.strict and not callback._check_on_train_epoch_end
