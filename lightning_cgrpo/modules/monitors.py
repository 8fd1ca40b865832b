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
USUAL = (MERIT, "rate/", "mean/", "reward/", "rollout/")
"""Metrics of every validation."""
TIMES = ("time/", "throughput/")
"""Prefixes of metrics that differ between equal runs."""


def check_monitors(trainer: Trainer, objective: Objective, validated: bool) -> None:
    """Compare monitored metrics with the run's metrics, after an update or a validation (`validated`)."""
    validates = sum(trainer.num_val_batches) > 0
    logged = {name for name in trainer.callback_metrics if not name.startswith(TIMES)}
    possible = _possible(objective)
    # Without validation, `Checkpoints` keeps the newest checkpoint.
    in_validation = {f"{VALIDATION}{name}" for name in (*(possible if validates else ()), MERIT)}
    usual = {name for name in in_validation if name.partition("/")[2].startswith(USUAL)}
    metrics = {*trainer.callback_metrics, *possible, *in_validation, *COUNTERS}
    for callback in trainer.callbacks:  # type: ignore[attr-defined] # set by Lightning's callback connector
        name = callback.monitor if isinstance(callback, (EarlyStopping, ModelCheckpoint)) else None
        if name is None or name in metrics:
            continue
        # A user's callback may log any other name later.
        misspelled = bool(difflib.get_close_matches(name, metrics, n=1, cutoff=0.85))
        decided = validated or not validates
        if misspelled or (decided and (name.startswith(VALIDATION) or _asks_within_epochs(trainer, callback))):
            raise UserError(
                f"Expected {type(callback).__name__} to monitor a metric of this run, but got '{name}'."
                f"{did_you_mean(name, metrics)} Try one of {', '.join(sorted(logged | usual))}."
            )


def _possible(objective: Objective) -> set[str]:
    """Metrics of an update or an evaluation, some of which have no value at first."""
    families: dict[str, Iterable[str]] = {
        "rate": objective.constraints.keys() - objective.means,
        "mean": objective.means,
        "reward": ["mean", *objective.rewards],
        "effective_weight": objective.component_names,
        "faults": objective.signal_names,
        "inapplicable": objective.signal_names,
        "rollout": ["length"],
    }
    return {f"{family}/{name}" for family, names in families.items() for name in names}


def _asks_within_epochs(trainer: Trainer, callback: Callback) -> bool:
    if isinstance(callback, ModelCheckpoint):
        return callback._every_n_train_steps > 0 or not callback._should_save_on_train_epoch_end(trainer)
    return isinstance(callback, EarlyStopping) and callback.strict and not callback._check_on_train_epoch_end
