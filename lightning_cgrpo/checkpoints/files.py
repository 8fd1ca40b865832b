"""Checkpoint files: names, replacement, damage, and the newest of a run. Imports torch only to look for damage."""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
import zipfile
from collections import OrderedDict
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from pickle import Unpickler, UnpicklingError
from typing import Any

from lightning_cgrpo.core.errors import UserError, first_line

UNFINISHED = ".unfinished"
FORMER = f".former{UNFINISHED}"
"""Suffix of an old directory while a new directory replaces it."""
SHARDED_LAST = "meta.pt"
"""The file that Lightning writes last into a sharded checkpoint, which is a directory."""
LAST = "last.ckpt"


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
    others = {*absolute.parent.glob("*.ckpt"), *absolute.parent.parent.parent.glob("*/checkpoints/*.ckpt")} - {absolute}
    ranked = sorted(others, key=lambda other: (updates(other), other.parent == absolute.parent, version(other)))
    whole = next((other for other in reversed(ranked) if damage(other) is None), None)
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


class _Other:
    """Stands for every object of a checkpoint that is no plain container, such as a tensor."""

    def __init__(self, *_: Any) -> None: ...

    def __setstate__(self, _: Any) -> None: ...

    def __setitem__(self, *_: Any) -> None: ...

    def extend(self, _: Any) -> None: ...

    append = extend


class _Containers(Unpickler):
    """Unpickles plain containers alone, without torch, so that a command finds its checkpoint in milliseconds."""

    def find_class(self, module: str, name: str) -> Any:
        return OrderedDict if (module, name) == ("collections", "OrderedDict") else _Other

    def persistent_load(self, _: Any) -> None:
        return None  # a tensor's numbers


def header(checkpoint: Path) -> dict[str, Any]:
    """A checkpoint's content without tensors.

    Raises:
        UserError: the file can't be read.
    """
    try:
        with zipfile.ZipFile(checkpoint / SHARDED_LAST if checkpoint.is_dir() else checkpoint) as archive:
            (pickled,) = (name for name in archive.namelist() if name.endswith("/data.pkl"))
            with archive.open(pickled) as file:
                content = _Containers(file).load()
    except Exception as error:  # a damaged archive raises errors of all kinds
        raise UserError(f"Expected '{checkpoint}' to be a whole checkpoint, but got: {first_line(error)}.") from error
    if not isinstance(content, dict):
        raise UserError(f"Expected '{checkpoint}' to hold a run's state, but got a {type(content).__name__}.")
    return content


def updates(checkpoint: Path) -> float:
    """The number of updates done; infinite for a file that can't be read, so that its damage is reported."""
    try:
        return int(header(checkpoint)["global_step"])
    except (UserError, LookupError, TypeError, ValueError):
        return math.inf


def version(checkpoint: Path) -> int:
    """The number that Lightning gave the start of the run, in ``version_3/checkpoints``; -1 without."""
    numbered = re.fullmatch(r"version_(\d+)", checkpoint.parent.parent.name)
    return int(numbered[1]) if numbered else -1


def newest(folders: Iterable[Path]) -> Path | None:
    """The newest checkpoint in the folders of a run's versions; None without any.

    The last version with a checkpoint counts, because every start has a new version, and then the most updates. Times
    of files do not, because clocks are set back and folders are copied. In a folder, ``last.ckpt`` is the newest, else
    the checkpoint with the most updates. A damaged file that could be the newest is returned.

    Raises:
        UserError: another version has more updates, so that nobody can tell which is meant.
    """
    ends = []
    for folder in folders:
        put_back(folder)
        last = folder / LAST
        ends += [last] if last.exists() else sorted(folder.glob("*.ckpt"), key=updates)[-1:]
    end = max(ends, key=lambda end: (version(end), updates(end), str(end)), default=None)
    for other in ends:
        if end is not None and updates(end) < updates(other) < math.inf:
            raise UserError(
                f"Expected one newest checkpoint, but got '{end}' after update {updates(end)} and '{other}' after "
                f"update {updates(other)}, try --ckpt_path=FILE with one."
            )
    return end


def _callback_states(content: dict[str, Any]) -> list[dict[str, Any]]:
    states = content.get("callbacks")
    return [state for state in states.values() if isinstance(state, dict)] if isinstance(states, dict) else []


def best_of(last: Path) -> tuple[Path, str] | None:
    """The best checkpoint that the checkpoint `last` knows of, and the metric; None if the run ranks no checkpoints.

    Raises:
        UserError: the best checkpoint is gone, or `last` is damaged.
    """
    states = [state for state in _callback_states(header(last)) if "best_model_path" in state]
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
