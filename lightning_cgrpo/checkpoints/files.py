"""Checkpoint files: names, replacement, damage, and the newest of a run. Imports torch only to read a file."""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from lightning_cgrpo.errors import UserError, first_line

UNFINISHED = ".unfinished"
FORMER = f".former{UNFINISHED}"
"""Suffix of an old directory while a new directory replaces it."""
SHARDED_LAST = "meta.pt"
"""The file that Lightning writes last into a sharded checkpoint, which is a directory."""
LAST = "last.ckpt"
CHECKPOINTS = "checkpoints"
"""Name of the folder in a run's folder."""


def is_remote(path: Any) -> bool:
    """True for URLs, such as ``s3://…``."""
    return "://" in str(path)


# ---------------------------------------------------------------------- replacing


def put(unfinished: Path, target: Path) -> None:
    """Rename the written `unfinished` to `target`; at every moment, a whole checkpoint is on the disk."""
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
                remove(path)


def remove(path: Path) -> None:
    """Delete a file or a directory that may not exist."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


# ---------------------------------------------------------------------- damage


@lru_cache
def check_checkpoint(path: str) -> None:
    """Raise a `UserError` for a damaged checkpoint, naming the newest whole checkpoint; once per process."""
    if not is_remote(path) and (problem := damage(Path(path))) is not None:
        raise damaged(Path(path), problem)


def damaged(path: Path, problem: str) -> UserError:
    """The error for a damaged checkpoint, which names the newest other checkpoint of the run that is whole."""
    absolute = path.absolute()
    beside = {*absolute.parent.glob("*.ckpt"), *absolute.parent.parent.parent.glob(f"*/{CHECKPOINTS}/*.ckpt")} - {
        absolute
    }
    saved = [one for one in map(read_saved, beside) if one is not None]
    saved.sort(key=lambda one: (one.updates, one.path.parent == absolute.parent, one.version), reverse=True)
    whole = next((one.path for one in saved if damage(one.path) is None), None)
    hint = "and there is no other one"
    if whole is not None:
        hint = f"try --ckpt_path={os.path.relpath(whole)}, the newest other one that is whole"
    return UserError(f"Expected '{path}' to be a whole checkpoint, but it is damaged ({problem}), {hint}.")


def damage(path: Path) -> str | None:
    """A description of a checkpoint's damage, None if whole. torch itself compares no checksums."""
    if path.is_dir():
        from lightning_cgrpo.checkpoints.sharded import damage_of_parts

        if not (path / SHARDED_LAST).is_file():
            return f"{SHARDED_LAST} is missing"
        return damage(path / SHARDED_LAST) or damage_of_parts(path)
    try:
        with zipfile.ZipFile(path) as archive:
            broken = archive.testzip()
        if broken is not None:
            return f"the checksum of {broken} differs"
        # Checksums leave out the archive's own structure. Mapped, because the content has been compared.
        from torch import load

        load(path, map_location="cpu", weights_only=True, mmap=True)
    except UnpicklingError:
        return None  # Not damage: `CheckpointFiles` refuses objects other than tensors and plain containers.
    except Exception as error:  # a damaged archive raises errors of all kinds
        return first_line(error)
    return None


# ---------------------------------------------------------------------- the newest and the best


def content_of(checkpoint: Path) -> dict[str, Any]:
    """A checkpoint's content with tensors mapped from the disk; of a sharded checkpoint, all but tensors.

    Raises:
        UserError: the file can't be read.
    """
    from torch import load

    file = checkpoint / SHARDED_LAST if checkpoint.is_dir() else checkpoint
    try:
        content = load(file, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # a damaged archive raises errors of all kinds
        raise UserError(f"Expected '{checkpoint}' to be a whole checkpoint, but got: {first_line(error)}.") from error
    if not isinstance(content, dict):
        raise UserError(f"Expected '{checkpoint}' to hold a run's state, but got a {type(content).__name__}.")
    return content


@dataclass(frozen=True)
class Saved:
    """A checkpoint, the updates done in it, and the random name of its run, which resumes keep."""

    path: Path
    updates: int
    run: str | None

    @property
    def version(self) -> int:
        """Number of the version, which Lightning counts up; -1 without a number."""
        numbered = re.fullmatch(r"version_(\d+)", self.path.parent.parent.name)
        return int(numbered[1]) if numbered else -1


def newest(folders: Iterable[Path]) -> Path | None:
    """The newest checkpoint in the folders of a run's versions; None without any.

    The last version counts; without numbers, the most updates. Times of files do not count, because clocks are set back
    and folders are copied. A damaged file that could be the newest is returned, so that its damage is reported.
    """
    ends: list[Saved] = []
    for folder in folders:
        put_back(folder)
        files = sorted(folder.glob("*.ckpt"), key=lambda path: path.name != LAST)
        readable = [saved for saved in map(read_saved, files) if saved is not None]
        if files and (not readable or readable[0].path != files[0]):
            ends.append(Saved(files[0], 0, None))
        elif files:
            # A run without a logger writes over an earlier run, some of whose other checkpoints stay.
            same = [saved for saved in readable if saved.run == readable[0].run or readable[0].path.name != LAST]
            ends.append(max(same, key=lambda saved: saved.updates))
    return max(ends, key=lambda saved: (saved.version, saved.updates)).path if ends else None


def read_saved(path: Path) -> Saved | None:
    """What a checkpoint says of itself; None if the file can't be read."""
    try:
        content = content_of(path)
        updates = int(content["global_step"])
    except (UserError, LookupError, TypeError, ValueError):
        return None
    names = [state["run"] for state in _callback_states(content) if "run" in state]
    return Saved(path, updates, names[0] if names else None)


def _callback_states(content: dict[str, Any]) -> list[dict[str, Any]]:
    states = content.get("callbacks")
    return [state for state in states.values() if isinstance(state, dict)] if isinstance(states, dict) else []


def best_of(last: Path) -> tuple[Path, str] | None:
    """The best checkpoint that the checkpoint `last` knows of, and the metric; None if the run ranks no checkpoints.

    Raises:
        UserError: the best checkpoint is gone, or `last` is damaged.
    """
    states = [state for state in _callback_states(content_of(last)) if "best_model_path" in state]
    state = next((state for state in states if state["monitor"] is not None), None)
    # Without a score, a checkpoint is the newest, not the best.
    if state is None or not state["best_model_path"] or state.get("best_model_score", 0) is None:
        return None
    best, monitor = Path(state["best_model_path"]), str(state["monitor"])
    moved = last.parent / os.path.relpath(best, state["dirpath"] or best.parent)  # with the run's folder
    for path in (best, moved):
        put_back(path.parent)
        if path.exists():
            return path, monitor
    raise UserError(f"Expected the best checkpoint by {monitor} at '{best}', but it is gone, try --ckpt_path=last.")
