"""Replacing a checkpoint: renames that leave a whole checkpoint at every moment. Imports no torch."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
from pathlib import Path

from lightning_cgrpo.checkpoints.names import FORMER, UNFINISHED


def put(unfinished: Path, target: Path) -> None:
    """Rename the written `unfinished` to `target`, replacing an old checkpoint."""
    if not target.is_dir():
        os.replace(unfinished, target)
        return
    former = target.with_name(f"{target.name}{FORMER}")
    shutil.rmtree(former, ignore_errors=True)
    target.rename(former)
    try:
        unfinished.rename(target)
    except OSError:
        if not target.is_dir():
            raise
        # Another command has called `put_back` in between.
        put(unfinished, target)
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
    """Call `put_back`, and remove unfinished files, if last changed before a time (`time.time`)."""
    put_back(folder)
    for path in folder.glob(f"*{UNFINISHED}"):
        # A running process may rename the file meanwhile; or the file belongs to another user.
        with contextlib.suppress(OSError):
            # Not st_mtime, because a rename leaves it unchanged.
            if max(part.stat().st_ctime for part in (path, *path.glob("*"))) < before:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
