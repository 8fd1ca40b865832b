"""Weights out of a sharded checkpoint: a directory, to which every process has written its part."""

from __future__ import annotations

import warnings
from pathlib import Path
from pickle import Unpickler, UnpicklingError
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from lightning_cgrpo.errors import UserError

DESCRIPTION = ".metadata"
"""The file that says what is in the others."""
METADATA = "torch.distributed.checkpoint.metadata"
HARMLESS = {
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("pathlib", "PosixPath"),
    ("pathlib", "WindowsPath"),
    ("pathlib", "Path"),
}


def read_weights(checkpoint: Path, prefix: str) -> dict[str, Tensor]:
    """The weights under a prefix, whole, by their names after it. Nothing else of the checkpoint is read.

    Raises:
        UserError: it is damaged, or no such checkpoint, or its description holds anything but descriptions.
    """
    try:
        with (checkpoint / DESCRIPTION).open("rb") as file:
            described = _Descriptions(file).load().state_dict_metadata
        found = {
            name: torch.empty(part.size, dtype=part.properties.dtype)
            for name, part in described.items()
            if name.startswith(prefix) and isinstance(part, TensorStorageMetadata)
        }
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # as is asked for
            load(found, checkpoint_id=checkpoint, no_dist=True)
    except (
        OSError,
        RuntimeError,
        LookupError,
        AttributeError,
        EOFError,
        UnpicklingError,
        CheckpointException,
    ) as error:
        reason = (str(error).strip() or type(error).__name__).split("\n")[0].rstrip(".")
        raise UserError(f"Expected '{checkpoint}' to be a whole sharded checkpoint, but got: {reason}.") from None
    return {name.removeprefix(prefix): tensor for name, tensor in found.items()}


class _Descriptions(Unpickler):
    """Reads the classes with which torch describes a checkpoint. `load` then reads it again, as any pickle."""

    def find_class(self, module: str, name: str) -> Any:
        dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if not dtype and module != METADATA and (module, name) not in HARMLESS:
            raise UnpicklingError(f"{DESCRIPTION} holds {module}.{name}")
        return super().find_class(module, name)
