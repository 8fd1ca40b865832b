"""The trained model in Hugging Face's format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, Trainer


class SavePretrained(Callback):
    """Writes the policy as a directory that transformers loads, when training ends.

    Args:
        directory: is created; files of a model that was saved there before are overwritten. Adapters and whole models
            have different ones: give each a directory of its own.
    """

    def __init__(self, directory: str) -> None:
        self.directory = Path(directory)

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        if trainer.is_global_zero:
            pl_module.policy.save_pretrained(self.directory)
            print(f"Wrote the model to {self.directory}.")
