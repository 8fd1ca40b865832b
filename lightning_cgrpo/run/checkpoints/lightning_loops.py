"""Lightning's private loops: whether a validation follows, and four repairs that exact resumes need."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Trainer


def validation_follows(trainer: Trainer) -> bool:
    """True if Lightning validates after this update."""
    loop = trainer.fit_loop
    assert loop._data_fetcher is not None
    return any(trainer.num_val_batches) and loop.epoch_loop._should_check_val_fx(loop._data_fetcher)


def count_epoch_as_begun(trainer: Trainer) -> None:
    """Count this epoch as begun.

    Lightning does not count it if a run resumes after an epoch's last update. A further resumption would then fail.
    """
    epochs = trainer.fit_loop.epoch_progress
    for progress in (epochs.total, epochs.current):
        begun = progress.processed + 1  # type: ignore[attr-defined]
        progress.ready = begun
        progress.started = begun  # type: ignore[attr-defined]


def count_validation_once(trainer: Trainer) -> None:
    """Forget the batches of an interrupted validation, which begins anew and would be counted twice."""
    trainer.fit_loop.epoch_loop.val_loop.batch_progress.total.reset_on_restart()


def mark_validation_due(checkpoint: dict[str, Any], began: bool) -> None:
    """Set the loops of a checkpoint to the first batch of a validation, so that a resumed run validates.

    Lightning would take the validation as done.

    Args:
        began: whether the checkpoint is written within the validation.
    """
    loops = checkpoint["loops"]["fit_loop"]
    update = loops["epoch_loop.batch_progress"]
    for progress in (update["total"], update["current"]):
        progress["completed"] = progress["processed"]
    validation = loops["epoch_loop.val_loop.batch_progress"]
    done_before = validation["total"]["completed"]
    if began:
        done_before -= validation["current"]["completed"]
    _begin_batch(validation["total"], done_before)
    _begin_batch(validation["current"], 0)
    validation["is_last_batch"] = False


def _begin_batch(progress: dict[str, int], done: int) -> None:
    """Set a progress to the start of the batch after `done` batches."""
    progress.update(ready=done + 1, started=done + 1, processed=done, completed=done)
