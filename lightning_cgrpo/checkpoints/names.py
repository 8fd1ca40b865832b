"""Names of checkpoints on disk."""

from __future__ import annotations

from typing import Any

UNFINISHED = ".unfinished"
FORMER = f".former{UNFINISHED}"
"""Suffix of an old directory while a new directory replaces it."""
SHARDED_LAST = "meta.pt"
"""The file that Lightning writes last into a sharded checkpoint, which is a directory."""


def is_remote(path: Any) -> bool:
    """True for URLs, such as ``s3://…``."""
    return "://" in str(path)
