"""Sharded checkpoints: directories with a part from every process."""

from __future__ import annotations

import io
import warnings
import zipfile
from pathlib import Path
from pickle import Unpickler, UnpicklingError
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

from lightning_cgrpo.core.errors import UserError, first_line

DESCRIPTION = ".metadata"
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
"""Names in torch's own descriptions; dtypes are harmless too."""


def find_damaged_part(checkpoint: Path) -> str | None:
    """Damage of a sharded checkpoint's parts, or an object other than tensors and plain containers; else None.

    A resumed run unpickles the description and the optimizer's settings without restriction, so both are first read
    here with restriction. Values are compared with their checksums, one at a time; the description has no checksum.
    """
    try:
        # torch reads these files if the description can't be read.
        other = next(checkpoint.glob(f"_*{DESCRIPTION}"), None)
        if other is not None:
            return f"it has {other.name} beside {DESCRIPTION}"
        description = _read_description(checkpoint)
        kinds = description.state_dict_metadata
        stored = description.storage_data
        parts = [(at.fqn, kinds[at.fqn], part) for at, part in stored.items()]

        # The sizes of the files, which end with their last part.
        ends: dict[str, int] = {}
        for _, _, part in parts:
            file_name = part.relative_path
            beside = Path(file_name).name == file_name
            if not beside or part.transform_descriptors or min(part.offset, part.length) < 0:
                return f"{DESCRIPTION} doesn't describe parts of files beside it"
            ends[file_name] = max(ends.get(file_name, 0), part.offset + part.length)
        for file_name, end in ends.items():
            size = (checkpoint / file_name).stat().st_size
            if size != end:
                return f"{file_name} has {size} of {end} bytes"

        # The content of each part, which is an archive with checksums.
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
    except Exception as error:  # a damaged file raises errors of all kinds
        return first_line(error)
    return None


def read_weights(checkpoint: Path, prefix: str) -> dict[str, Tensor]:
    """The whole weights under a prefix, by their names without the prefix.

    Raises:
        UserError: `checkpoint` is damaged or no sharded checkpoint, or its description holds other objects.
    """
    try:
        # torch reads into tensors of the described sizes.
        weights: dict[str, Any] = {}
        for name, part in _read_description(checkpoint).state_dict_metadata.items():
            if name.startswith(prefix) and isinstance(part, TensorStorageMetadata):
                weights[name] = torch.empty(part.size, dtype=part.properties.dtype)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # as `no_dist` asks
            load(weights, checkpoint_id=checkpoint, no_dist=True)
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
    return {name.removeprefix(prefix): tensor for name, tensor in weights.items()}


def _read_description(checkpoint: Path) -> Metadata:
    with (checkpoint / DESCRIPTION).open("rb") as file:
        description = _Descriptions(file).load()
    if not isinstance(description, Metadata):
        raise UnpicklingError(f"{DESCRIPTION} holds a {type(description).__name__}")
    return description


class _Descriptions(Unpickler):
    """Unpickles torch's description classes alone, because torch's `load` has no restriction."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):
            return _memory_format_encoding
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        harmless = is_dtype or (module, name) in HARMLESS
        # A name with a period reaches into modules: ("torch…", "os.system") is found if the module imports os.
        if "." in name or not harmless:
            raise UnpicklingError(f"{DESCRIPTION} holds {module}.{name}")
        return super().find_class(module, name)


def _memory_format_encoding(_: Any, name: Any) -> Any:
    """A member of `_MEM_FORMAT_ENCODING`, which Python 3.11.0 to 3.11.3 pickles as a call of `getattr`."""
    if name not in _MEM_FORMAT_ENCODING.__members__:
        raise UnpicklingError(f"{DESCRIPTION} holds builtins.getattr")
    return _MEM_FORMAT_ENCODING[name]
