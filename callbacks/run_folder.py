"""The folder of a run."""

from __future__ import annotations

from pathlib import Path

from lightning.pytorch import Trainer


def run_folder(trainer: Trainer) -> Path:
    """The first logger's folder, else the trainer's `default_root_dir`. Collective."""
    folder = trainer.default_root_dir
    if trainer.loggers:
        # Not `log_dir`, which all runs share under W&B's logger; Lightning's ModelCheckpoint does the same.
        first = trainer.loggers[0]
        version = first.version if isinstance(first.version, str) else f"version_{first.version}"
        folder = str(Path(first.save_dir or trainer.default_root_dir) / str(first.name) / version)
    shared: str = trainer.strategy.broadcast(folder)
    return Path(shared)
