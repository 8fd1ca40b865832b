"""Damage of checkpoints: changed files and interrupted writes."""

from __future__ import annotations

import os
import zipfile
from functools import lru_cache
from pathlib import Path

from torch.distributed.checkpoint.api import CheckpointException

from lightning_cgrpo.checkpoints.names import SHARDED_LAST, is_remote
from lightning_cgrpo.checkpoints.sharded import damage_of_parts
from lightning_cgrpo.errors import UserError, first_line


@lru_cache
def check_checkpoint(path: str) -> None:
    """Raise a `UserError` for a damaged checkpoint, naming the newest whole checkpoint; once per process."""
    if is_remote(path):
        return
    problem = damage(Path(path))
    if problem is None:
        return
    other = newest_whole(Path(path))
    hint = f"try --ckpt_path={other}, the newest other one that is whole" if other else "and there is no other one"
    raise UserError(f"Expected '{path}' to be a whole checkpoint, but it is damaged ({problem}), {hint}.")


def damage(path: Path) -> str | None:
    """A description of a checkpoint's damage, None if whole. torch itself compares no checksums."""
    if path.is_dir():
        if not (path / SHARDED_LAST).is_file():
            return f"{SHARDED_LAST} is missing"
        return damage(path / SHARDED_LAST) or damage_of_parts(path)
    try:
        with zipfile.ZipFile(path) as archive:
            broken = archive.testzip()
    except Exception as error:  # a damaged archive raises errors of all kinds
        return first_line(error)
    return None if broken is None else f"the checksum of {broken} differs"


def newest_whole(path: Path) -> Path | None:
    """The newest other undamaged checkpoint of the run, in any version's folder."""
    path = path.absolute()
    beside = {*path.parent.glob("*.ckpt"), *path.parent.parent.parent.glob("*/checkpoints/*.ckpt")} - {path}
    for other in sorted(beside, key=lambda file: file.stat().st_mtime, reverse=True):
        if damage(other) is None:
            return Path(os.path.relpath(other))
    return None


def write_failure(error: BaseException, unfinished: Path) -> Exception | None:
    """The cause of a failed write of a sharded checkpoint; None if the error has another cause.

    torch wraps errors of the parts. Another error counts only if `SHARDED_LAST` in `unfinished` is damaged.
    """
    if isinstance(error, CheckpointException):
        causes: list[BaseException] = [cause for cause, _ in error.failures.values()]
        return next((cause for cause in causes if isinstance(cause, (OSError, RuntimeError))), None)
    last = unfinished / SHARDED_LAST
    # Without a partial file, a collective has failed.
    partial = last.exists() and damage(last) is not None
    return error if isinstance(error, (OSError, RuntimeError)) and partial else None
