"""Paths as users write them."""

from __future__ import annotations

import os
from pathlib import Path


def expand_path(path: str | os.PathLike[str]) -> Path:
    """The path with ``~`` and ``$NAME`` as in a shell; an unknown variable or user stays."""
    # By os, because a path's own method fails for an unknown user.
    return Path(os.path.expanduser(os.path.expandvars(path)))
