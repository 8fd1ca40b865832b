"""Replacing a checkpoint: at every moment, a whole checkpoint has the name."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
from pathlib import Path

UNFINISHED = ".unfinished"
FORMER = f".former{UNFINISHED}"
"""Suffix of an old directory while a new directory replaces it."""


def replace_checkpoint(unfinished: Path, target: Path) -> None:
    """Rename the written `unfinished`, a file or a directory, to `target`."""
    if not target.is_dir():
        os.replace(unfinished, target)
        return
    # No system call replaces a directory that holds files.
    former = target.with_name(f"{target.name}{FORMER}")
    shutil.rmtree(former, ignore_errors=True)
    target.rename(former)
    try:
        unfinished.rename(target)
    except OSError:
        if not target.is_dir():
            raise
        # Another command has called `put_back` in between.
        replace_checkpoint(unfinished, target)
        return
    shutil.rmtree(former)


def put_back(folder: Path) -> None:
    """Restore sharded checkpoints that a killed run set aside without replacing them."""
    for former in folder.glob(f"*{FORMER}"):
        target = former.with_name(former.name.removesuffix(FORMER))
        # Other processes may restore the name too, or finish the write.
        with contextlib.suppress(OSError):
            if not target.exists():
                former.rename(target)


def remove_unfinished(folder: Path, before: float = math.inf) -> None:
    """Call `put_back`, and remove unfinished checkpoints that last changed before a time (of `time.time`)."""
    put_back(folder)
    for path in folder.glob(f"*{UNFINISHED}"):
        # A running process may rename the file meanwhile; or the file belongs to another user.
        with contextlib.suppress(OSError):
            # Not st_mtime, because a rename leaves it unchanged.
            changed = max(part.stat().st_ctime for part in (path, *path.glob("*")))
            if changed < before:
                remove_checkpoint(path)


def remove_checkpoint(path: Path) -> None:
    """Delete a file or a directory that may not exist."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
