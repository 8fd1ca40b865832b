"""Trainers and commands that show and write nothing."""

from typing import Any

from lightning.pytorch import Trainer

QUIET = "--trainer.enable_progress_bar=false --trainer.enable_model_summary=false"


def quiet_trainer(*callbacks: Any, **options: Any) -> Trainer:
    """A trainer on the CPU without bars, summaries, checkpoints, validation and, unless asked for, a logger."""
    quiet = {"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    given = {"accelerator": "cpu", "logger": False, "limit_val_batches": 0, "log_every_n_steps": 1, **quiet, **options}
    return Trainer(callbacks=list(callbacks), **given)
