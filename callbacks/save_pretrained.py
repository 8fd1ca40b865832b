"""The trained model in Hugging Face's format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, Trainer

from lightning_cgrpo.errors import UserError
from lightning_cgrpo.sharding import gathered


class SavePretrained(Callback):
    """Writes the policy as a directory that transformers loads, when training ends.

    Args:
        directory: is created; files of a model that was saved there before are overwritten. Adapters and whole models
            have different ones: give each a directory of its own.
    """

    def __init__(self, directory: str) -> None:
        self.directory = Path(directory)

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        """Before hours of training.

        Raises:
            UserError: the policy can't be saved so, or there is a file of that name.
        """
        policy = getattr(pl_module, "policy", None)
        if not hasattr(policy, "save_pretrained"):
            raise UserError(f"Expected a language model to save, but the policy is a {type(policy).__name__}.")
        if self.directory.exists() and not self.directory.is_dir():
            raise UserError(f"Expected directory to be a new or existing one, but '{self.directory}' is a file.")

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        weights = gathered(pl_module.policy)  # by all processes together
        if trainer.is_global_zero:
            pl_module.policy.save_pretrained(self.directory, weights=weights)
            print(f"Wrote the model to {self.directory}.")
