"""The trained model in Hugging Face's format."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, Trainer

from lightning_cgrpo.checkpoints.names import UNFINISHED
from lightning_cgrpo.errors import UserError
from lightning_cgrpo.policies.sharding import full_weights

CONFIGS = ("config.json", "adapter_config.json")
"""Without which a directory is no model."""
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "model-?????-of-?????.safetensors")


class SavePretrained(Callback):
    """Writes the policy as a directory that transformers loads, when training ends.

    A model that was saved there before is there until all of the new one is on the disk.

    Args:
        directory: is created; files of a model that was saved there before are overwritten, others stay. Adapters and
            whole models have different ones: give each a directory of its own.
    """

    changes_learning = False

    def __init__(self, directory: str) -> None:
        self.directory = Path(directory).expanduser()

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        """Before hours of training.

        Raises:
            UserError: the policy can't be saved so, or there is a file of that name.
        """
        policy = getattr(pl_module, "policy", None)
        if not hasattr(policy, "save_pretrained"):
            raise UserError(f"Expected a language model to save, but the policy is a {type(policy).__name__}.")
        name = getattr(policy, "name", None)
        if stage == "fit" and name is not None and Path(name).expanduser().resolve() == self.directory.resolve():
            raise UserError(
                f"Expected directory to be another one than that of the model that training starts from, '{name}', "
                "but got the same, try another name."
            )
        if self.directory.exists() and not self.directory.is_dir():
            raise UserError(f"Expected directory to be a new or existing one, but '{self.directory}' is a file.")

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        weights = full_weights(pl_module.policy)  # by all processes together
        if trainer.is_global_zero:
            # Inside of it: a directory beside it may be on another disk, or not the user's.
            unfinished = self.directory / f"model{UNFINISHED}"
            shutil.rmtree(unfinished, ignore_errors=True)  # of a run that was killed
            pl_module.policy.save_pretrained(unfinished, weights=weights)
            _replace(unfinished, self.directory)
            print(f"Wrote the model to {self.directory}; --model.policy.model={self.directory} trains from there.")


def _replace(new: Path, directory: Path) -> None:
    """Move a model's files to where another's may be.

    Killed between two moves it leaves a directory that doesn't load, rather than one with weights of both models.
    """
    files = sorted(
        (file.relative_to(new) for file in new.rglob("*") if file.is_file()), key=lambda file: file.name in CONFIGS
    )
    for name in files:
        if name.name in CONFIGS:
            (directory / name).unlink(missing_ok=True)
    if any(name.name in WEIGHTS[:2] for name in files):
        for file in (file for pattern in WEIGHTS for file in directory.glob(pattern)):
            file.unlink()
    for name in files:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        # peft's card of the model: the user may have written in it.
        if name.name != "README.md" or not (directory / name).exists():
            os.replace(new / name, directory / name)
    shutil.rmtree(new)
