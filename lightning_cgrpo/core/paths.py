"""Paths as users write them."""

from __future__ import annotations

import os
from pathlib import Path


def expanded(path: str | os.PathLike[str]) -> Path:
    """The path with ``~`` and ``$NAME`` as in a shell; an unknown variable stays."""
    return Path(os.path.expandvars(path)).expanduser()
