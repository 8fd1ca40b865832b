"""A checkpoint's content without tensors, read in milliseconds, because torch is not imported."""

from __future__ import annotations

import math
import zipfile
from collections import OrderedDict
from pathlib import Path
from pickle import Unpickler
from typing import Any

from lightning_cgrpo.core.errors import UserError, first_line, kind_of

SHARDED_LAST = "meta.pt"
"""The file that Lightning writes last into a sharded checkpoint, which is a directory."""


def read_header(checkpoint: Path) -> dict[str, Any]:
    """The plain containers of a checkpoint; each tensor is a placeholder.

    Raises:
        UserError: the file can't be read.
    """
    try:
        file_name = checkpoint / SHARDED_LAST if checkpoint.is_dir() else checkpoint
        with zipfile.ZipFile(file_name) as archive:
            (pickled,) = (name for name in archive.namelist() if name.endswith("/data.pkl"))
            with archive.open(pickled) as file:
                content = _Containers(file).load()
    except Exception as error:  # a damaged archive raises errors of all kinds
        raise UserError(f"Expected '{checkpoint}' to be a whole checkpoint, but got: {first_line(error)}.") from error
    if not isinstance(content, dict):
        raise UserError(f"Expected '{checkpoint}' to hold a run's state, but got {kind_of(content)}.")
    return content


def updates_done(checkpoint: Path) -> float:
    """The number of updates done; infinite for a file that can't be read, so that its damage is reported."""
    try:
        return int(read_header(checkpoint)["global_step"])
    except (UserError, LookupError, TypeError, ValueError):
        return math.inf


class _Placeholder:
    """Stands for every object of a checkpoint that is no plain container, such as a tensor."""

    def __init__(self, *_: Any) -> None: ...

    def __setstate__(self, _: Any) -> None: ...

    def __setitem__(self, *_: Any) -> None: ...

    def extend(self, _: Any) -> None: ...

    append = extend


class _Containers(Unpickler):
    """Unpickles plain containers alone."""

    def find_class(self, module: str, name: str) -> Any:
        return OrderedDict if (module, name) == ("collections", "OrderedDict") else _Placeholder

    def persistent_load(self, _: Any) -> None:
        return None  # a tensor's numbers
