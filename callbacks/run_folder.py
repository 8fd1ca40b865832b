"""The folder of a run, in which callbacks write beside the logs."""

from __future__ import annotations

from pathlib import Path

from lightning.pytorch import Trainer


def run_folder(trainer: Trainer) -> Path:
    """The folder of the run: of the first logger's run, the parent of its checkpoints. Collective.

    Without a logger, the trainer's `default_root_dir`.
    """
    folder = trainer.default_root_dir
    if trainer.loggers:
        # As Lightning's ModelCheckpoint: W&B's logger has a folder of logs that all runs share.
        first = trainer.loggers[0]
        version = first.version if isinstance(first.version, str) else f"version_{first.version}"
        folder = str(Path(first.save_dir or trainer.default_root_dir) / str(first.name) / version)
    found: str = trainer.strategy.broadcast(folder)
    return Path(found)
