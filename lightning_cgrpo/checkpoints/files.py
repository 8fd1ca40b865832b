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
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from pickle import Unpickler, UnpicklingError
from typing import Any

from lightning_cgrpo.errors import UserError, first_line

UNFINISHED = ".unfinished"
FORMER = f".former{UNFINISHED}"
"""Suffix of an old directory while a new directory replaces it."""
SHARDED_LAST = "meta.pt"
"""The file that Lightning writes last into a sharded checkpoint, which is a directory."""
LAST = "last.ckpt"

Lineage = tuple[tuple[str, int], ...]
"""Every start of a run: a random name, and the update from which it began."""


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
    beside = {*absolute.parent.glob("*.ckpt"), *absolute.parent.parent.parent.glob("*/checkpoints/*.ckpt")} - {absolute}
    saved = [one for one in map(_read, beside) if one is not None]
    saved.sort(key=lambda one: (one.update, one.path.parent == absolute.parent, one.version or 0), reverse=True)
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


@dataclass(frozen=True)
class Saved:
    """A checkpoint's place in the history of its run; `update` is the number of updates done."""

    path: Path
    update: int
    lineage: Lineage

    @property
    def version(self) -> int | None:
        """Number of the version, which Lightning counts up whatever the clock says."""
        numbered = re.fullmatch(r"version_(\d+)", self.path.parent.parent.name)
        return int(numbered[1]) if numbered else None

    @property
    def unknown(self) -> Lineage:
        """The lineage of a checkpoint of an earlier version of this package: each version is a run of its own."""
        return ((str(self.path.parent), 0),)

    def precedes(self, other: Saved) -> bool:
        """True if `other` is the same run, at the same update or later, or was resumed from this checkpoint."""
        starts = len(self.lineage)
        if other.lineage[:starts] != self.lineage:
            return False
        return self.update <= (other.lineage[starts][1] if len(other.lineage) > starts else other.update)


def newest(folders: Iterable[Path]) -> Path | None:
    """The newest checkpoint in the folders of a run's versions; None without any.

    Lineage and updates decide. Times of files do not, because clocks are set back and folders are copied. Among
    unrelated runs, the last version counts, if no other run has more updates. A damaged file that could be the newest
    is returned, so that its damage is reported.

    Raises:
        UserError: another run, which the last version does not continue, has more updates.
    """
    saved: list[Saved] = []
    unreadable: list[Saved] = []
    for folder in folders:
        put_back(folder)
        files = sorted(folder.glob("*.ckpt"), key=lambda path: path.name != LAST)
        readable = [one for one in map(_read, files) if one is not None]
        if files and (not readable or readable[0].path != files[0]):
            unreadable.append(Saved(files[0], 0, ()))
        if readable and (last := readable[0]).path.name == LAST:
            # A run without a logger writes over an earlier run, some of whose other checkpoints stay.
            readable = [last, *(one for one in readable if one.lineage != last.unknown and last.precedes(one))]
        saved += readable
    saved.sort(key=lambda one: -1 if one.version is None else one.version, reverse=True)
    unique = list({(one.lineage, one.update): one for one in reversed(saved)}.values())[::-1]
    ends = [one for one in unique if not any(one.precedes(other) for other in unique if other is not one)]
    ordered = all(one.version is not None for one in (*ends, *unreadable))
    end = max(ends, key=lambda one: (one.version if ordered else 0, one.update), default=None)
    for one in unreadable:
        if end is None or not ordered or (one.version or 0) >= (end.version or 0):
            return one.path
    if end is None:
        return None
    others = [one for one in ends if one is not end and one.update >= end.update + ordered]
    if others:
        raise UserError(
            f"Expected one newest checkpoint, but got '{end.path}' after update {end.update} and '{others[0].path}' "
            f"after update {others[0].update}, of which neither continues the other, try --ckpt_path=FILE with one."
        )
    return end.path


def _read(path: Path) -> Saved | None:
    try:
        content = header(path)
        update = int(content["global_step"])
    except (UserError, LookupError, TypeError, ValueError):
        return None
    lineages = [state["lineage"] for state in _callback_states(content) if "lineage" in state]
    saved = Saved(path, update, tuple((str(name), int(begun)) for name, begun in lineages[0]) if lineages else ())
    return saved if saved.lineage else replace(saved, lineage=saved.unknown)


def lineage_of(path: Path) -> Lineage:
    """The starts of the run that led to a checkpoint; () if the file can't be read."""
    saved = _read(path)
    return () if saved is None else saved.lineage


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
