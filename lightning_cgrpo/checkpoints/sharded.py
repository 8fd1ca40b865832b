"""Weights out of a sharded checkpoint: a directory, to which every process has written its part."""

from __future__ import annotations

import io
import warnings
import zipfile
from dataclasses import is_dataclass
from pathlib import Path
from pickle import Unpickler, UnpicklingError
from types import MethodType
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import (
    _MEM_FORMAT_ENCODING,
    BytesStorageMetadata,
    Metadata,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.state_dict_loader import load

from lightning_cgrpo.checkpoints import files as checkpoint_files
from lightning_cgrpo.errors import UserError, first_line

DESCRIPTION = ".metadata"
"""The file that says what is in the others."""
METADATA = "torch.distributed.checkpoint.metadata"
HARMLESS = {
    (METADATA, "Metadata"),
    (METADATA, "MetadataIndex"),
    (METADATA, "StorageMeta"),
    (METADATA, "TensorStorageMetadata"),
    (METADATA, "BytesStorageMetadata"),
    (METADATA, "ChunkStorageMetadata"),
    (METADATA, "TensorProperties"),
    (METADATA, "_MEM_FORMAT_ENCODING"),
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("pathlib", "PosixPath"),
    ("pathlib", "WindowsPath"),
    ("pathlib", "Path"),
    ("pathlib._local", "PosixPath"),  # of Python 3.13
    ("pathlib._local", "WindowsPath"),
}
"""All that torch's own descriptions name, but dtypes."""


def damage(checkpoint: Path) -> str | None:
    """What is missing or has changed in a sharded checkpoint, or is more than tensors and plain containers; else None.

    What torch unpickles without restriction when a run goes on is read here with restriction, before it is: the
    description, and all values but tensors (the optimizer's settings). All values, which are archives within the files,
    are compared with their checksums, one at a time in memory; the description has none.
    """
    try:
        # torch would read these, where it can't read the description.
        if other := next(checkpoint.glob(f"_*{DESCRIPTION}"), None):
            return f"it has {other.name} beside {DESCRIPTION}"
        description = _describe(checkpoint)
        kinds, stored = description.state_dict_metadata, description.storage_data
        parts = [(at.fqn, kinds[at.fqn], part) for at, part in stored.items()]
        ends: dict[str, int] = {}
        for _, _, part in parts:
            file_name = part.relative_path
            if Path(file_name).name != file_name or part.transform_descriptors or min(part.offset, part.length) < 0:
                return f"{DESCRIPTION} doesn't describe parts of files beside it"
            ends[file_name] = max(ends.get(file_name, 0), part.offset + part.length)
        for file_name, end in ends.items():
            if (size := (checkpoint / file_name).stat().st_size) != end:
                return f"{file_name} has {size} of {end} bytes"
        for name, kind, part in parts:
            with (checkpoint / part.relative_path).open("rb") as file:
                file.seek(part.offset)
                value = io.BytesIO(file.read(part.length))
            with zipfile.ZipFile(value) as archive:
                if archive.testzip():
                    return f"the checksum of {name} differs"
            if isinstance(kind, BytesStorageMetadata):
                value.seek(0)
                try:
                    torch.load(value, weights_only=True)
                except UnpicklingError:
                    return f"{part.relative_path} holds more than tensors and plain containers"
    except Exception as error:  # all kinds, of a file that is none
        return first_line(error)
    return None


def write_failure(error: BaseException, unfinished: Path) -> Exception | None:
    """What kept a process from writing its part of a checkpoint; None if the error is of anything else.

    torch tells all processes of what any of them met; but the file that Lightning writes last, one writes alone.
    """
    if isinstance(error, CheckpointException):
        causes: list[BaseException] = [cause for cause, _ in error.failures.values()]
        return next((cause for cause in causes if isinstance(cause, (OSError, RuntimeError))), None)
    last = unfinished / checkpoint_files.SHARDED_LAST
    # Otherwise it is a collective that has failed.
    partial = last.exists() and checkpoint_files.damage(last) is not None
    return error if isinstance(error, (OSError, RuntimeError)) and partial else None


def read_weights(checkpoint: Path, prefix: str) -> dict[str, Tensor]:
    """The weights under a prefix, whole, by their names after it. Nothing else of the checkpoint is read.

    Raises:
        UserError: it is damaged, or no such checkpoint, or its description holds anything but descriptions.
    """
    try:
        described = _describe(checkpoint).state_dict_metadata
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
        reason = first_line(error)
        raise UserError(f"Expected '{checkpoint}' to be a whole sharded checkpoint, but got: {reason}.") from None
    return {name.removeprefix(prefix): tensor for name, tensor in found.items()}


def _describe(checkpoint: Path) -> Metadata:
    with (checkpoint / DESCRIPTION).open("rb") as file:
        description = _Descriptions(file).load()
    if not isinstance(description, Metadata):
        raise UnpicklingError(f"{DESCRIPTION} holds a {type(description).__name__}")
    return description


class _Descriptions(Unpickler):
    """Reads the classes with which torch describes a checkpoint. `load` then reads it again, as any pickle."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):
            member: Any = _member
            return member.__call__  # which, unlike a function, can't be changed
        dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        # A name with a period is of something in it: ("torch…", "os.system") is found in a module that imports os.
        if "." in name or not (dtype or (module, name) in HARMLESS):
            raise UnpicklingError(f"{DESCRIPTION} holds {module}.{name}")
        found: Any = super().find_class(module, name)
        if not dtype and is_dataclass(found):
            bases: tuple[Any, ...] = (found,)
            return _Unchangeable(name, bases, {})
        return found if dtype else found.__call__


def _member(of: Any, name: Any) -> Any:
    """What `getattr` is for in a description: members of an enumeration, as Python 3.11.0 to 3.11.3 pickles them."""
    encodings = _MEM_FORMAT_ENCODING
    # Read here, it is its method; see `find_class`.
    if type(of) is not MethodType or of.__self__ is not encodings or type(name) is not str:
        raise UnpicklingError(f"{DESCRIPTION} holds builtins.getattr")
    if name not in encodings.__members__:
        raise UnpicklingError(f"{DESCRIPTION} holds {encodings.__name__}.{name}")
    return encodings[name]


class _Unchangeable(type):
    """Of classes that a pickle, which may also set attributes, can't change: the next one to be read would differ."""

    def __setattr__(cls, name: str, value: Any) -> None:
        raise UnpicklingError(f"{DESCRIPTION} changes {cls.__name__}.{name}")
