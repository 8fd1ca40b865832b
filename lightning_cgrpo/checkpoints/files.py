"""Checkpoints on disk: there completely or not at all, and refused where they are damaged."""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import shutil
import zipfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO
from torch import Tensor

from lightning_cgrpo.errors import UserError, first_line

UNFINISHED = ".unfinished"
"""What a checkpoint is called, in its folder, while it is being written."""
FORMER = f".former{UNFINISHED}"
"""And a directory that it takes the place of."""
SHARDED_LAST = "meta.pt"
"""Of a sharded checkpoint, which is a directory, the file that Lightning writes last."""


class CheckpointFiles(TorchCheckpointIO):
    """Writes checkpoints where they are to be, and reads none that is damaged or holds code.

    Lightning's own goes by way of the machine's folder for temporary files, which may be small, is left full by a run
    that is killed, and from which a file is copied, not moved, if it is on another disk. Names with ``://`` are left to
    Lightning: object stores keep an object's former content until the new one is complete.

    Raises:
        UserError: in writing, if there is no room; in reading, if the checkpoint is damaged, is sharded, or holds more
            than tensors and plain containers.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        if is_remote(path) or storage_options is not None:
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = target.with_name(f"{target.name}{UNFINISHED}")
        try:
            with unfinished.open("wb") as file:
                torch.save(checkpoint, file)
                file.flush()
                # Before the name: otherwise a power failure can leave the name with nothing behind it.
                os.fsync(file.fileno())
            put(unfinished, target)
        except (OSError, RuntimeError) as error:  # torch's for a disk that is full
            unfinished.unlink(missing_ok=True)
            raise unwritten(target, error) from error

    def load_checkpoint(self, path: Any, map_location: Any = "cpu", weights_only: bool | None = None) -> dict[str, Any]:
        check_checkpoint(str(path))
        if not is_remote(path) and Path(path).is_dir():
            raise UserError(
                f"Expected '{path}' to be a file, but it is a sharded checkpoint, a directory, try "
                "--trainer.strategy=fsdp2, which reads it, or `python -m lightning_cgrpo export`, for a model of it."
            )
        try:
            loaded: dict[str, Any] = super().load_checkpoint(path, map_location, weights_only is not False)
        except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
            raise UserError(
                f"Expected '{path}' to be a checkpoint of tensors and plain containers, but got: {first_line(error)}"
            ) from error
        return loaded


def unwritten(target: Path, error: Exception) -> UserError:
    """Of a checkpoint that can't be written."""
    # torch says of a full disk in which of its files it noticed.
    reason = "the disk is full, or closed to this user" if isinstance(error, RuntimeError) else first_line(error)
    resume = ", and --ckpt_path=last: the checkpoint before is whole" if any(target.parent.glob("*.ckpt")) else ""
    return UserError(
        f"Expected to write the checkpoint '{target}', but got: {reason}, try to free space on the disk{resume}."
    )


def put(unfinished: Path, target: Path) -> None:
    """Give what is written its name, in one step; a directory that has the name gives way before, in another."""
    if target.is_dir():
        former = target.with_name(f"{target.name}{FORMER}")
        shutil.rmtree(former, ignore_errors=True)
        target.rename(former)
        try:
            unfinished.rename(target)
        except OSError:
            if not target.is_dir():
                raise
            # Put back by a command that looked for the last checkpoint at this moment.
            put(unfinished, target)
            return
        shutil.rmtree(former)
    else:
        os.replace(unfinished, target)


def put_back(folder: Path) -> None:
    """Give directories their names again that gave way when a run was killed before another had the name."""
    for former in folder.glob(f"*{FORMER}"):
        target = former.with_name(former.name.removesuffix(FORMER))
        # Other processes do the same, or finish the writing.
        with contextlib.suppress(OSError):
            if not target.exists():
                former.rename(target)


def remove_unfinished(folder: Path, before: float = math.inf) -> None:
    """What was being written to a folder when a run was killed, if it has last changed before a time (`time.time`)."""
    put_back(folder)
    for path in folder.glob(f"*{UNFINISHED}"):
        # Another run, which isn't killed, may give it its name meanwhile; or it is another user's.
        with contextlib.suppress(OSError):
            # Not st_mtime, which doesn't tell of another name.
            if max(part.stat().st_ctime for part in (path, *path.glob("*"))) < before:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


@lru_cache
def check_checkpoint(path: str) -> None:
    """Look at all of a checkpoint, once in a process.

    Raises:
        UserError: it is damaged; names the newest one beside it that isn't.
    """
    if is_remote(path):
        return
    problem = damage(Path(path))
    if problem is None:
        return
    other = newest_whole(Path(path))
    hint = f"try --ckpt_path={other}, the newest other one that is whole" if other else "and there is no other one"
    raise UserError(f"Expected '{path}' to be a whole checkpoint, but it is damaged ({problem}), {hint}.")


def damage(path: Path) -> str | None:
    """What is wrong with a checkpoint; None if every part of it has the checksum that it was written with.

    torch itself compares no checksums: a weight that has changed on the disk would be loaded as it is. Of a sharded
    checkpoint see `sharded_checkpoints.damage`.
    """
    if path.is_dir():
        from lightning_cgrpo.checkpoints import sharded as sharded_checkpoints

        if not (path / SHARDED_LAST).is_file():
            return f"{SHARDED_LAST} is missing"
        return damage(path / SHARDED_LAST) or sharded_checkpoints.damage(path)
    try:
        with zipfile.ZipFile(path) as archive:
            broken = archive.testzip()
    except Exception as error:  # all kinds, of a file that is none
        return first_line(error)
    return None if broken is None else f"the checksum of {broken} differs"


def newest_whole(path: Path) -> Path | None:
    """The newest other checkpoint of the same run that isn't damaged: in this folder, or its other versions'."""
    path = path.absolute()
    beside = {*path.parent.glob("*.ckpt"), *path.parent.parent.parent.glob("*/checkpoints/*.ckpt")} - {path}
    for other in sorted(beside, key=lambda file: file.stat().st_mtime, reverse=True):
        if damage(other) is None:
            return Path(os.path.relpath(other))
    return None


def last_of(run: Path) -> Path | None:
    """The newest ``last.ckpt`` of all versions of a run, a folder of a logger's; None without any."""
    for folder in run.glob("*/checkpoints"):
        put_back(folder)
    return max(run.glob("*/checkpoints/last.ckpt"), key=lambda path: path.stat().st_mtime, default=None)


def best_of(last: Path) -> Path:
    """The checkpoint that was the best one, by the metric that `Checkpoints` monitors, when another one was written.

    Args:
        last: a checkpoint of the same run.

    Raises:
        UserError: nothing is monitored, or was saved yet, or the best checkpoint is gone, or `last` can't be read.
    """
    file = last / SHARDED_LAST if last.is_dir() else last
    try:
        # The states of callbacks, without the weights.
        loaded = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except (pickle.UnpicklingError, RuntimeError, OSError) as error:
        raise UserError(f"Expected '{last}' to be a whole checkpoint, but got: {first_line(error)}.") from error
    states = [state for state in loaded.get("callbacks", {}).values() if isinstance(state, dict)]
    ranked = [state for state in states if "best_model_path" in state and state["monitor"] is not None]
    if not ranked:
        raise UserError(
            f"Expected a run that monitors a metric for --ckpt_path=best, but '{last}' ranks no checkpoints, try "
            "--ckpt_path=last, or a run with --callbacks.checkpoints.monitor=reward/mean and mode=max."
        )
    state = ranked[0]
    if not state["best_model_path"]:
        raise UserError(
            f"Expected a checkpoint ranked by {state['monitor']}, but none had been written before '{last}', try "
            "--ckpt_path=last."
        )
    best = Path(state["best_model_path"])
    # A run that was moved.
    moved = last.parent / os.path.relpath(best, state["dirpath"] or best.parent)
    for path in (best, moved):
        put_back(path.parent)
        if path.exists():
            return path
    raise UserError(
        f"Expected the best checkpoint by {state['monitor']} at '{best}', but it is gone, try --ckpt_path=last."
    )


def check_weights(own: Mapping[str, Tensor], weights: Mapping[str, Tensor], checkpoint: str) -> None:
    """Compare names and shapes of the weights of a configuration and of a checkpoint.

    Raises:
        UserError: naming the first that differ.
    """
    for name in {**own, **weights}:
        here, there = own.get(name), weights.get(name)
        if here is None or there is None or here.shape != there.shape:
            shapes = ["nothing" if weight is None else list(weight.shape) for weight in (here, there)]
            raise UserError(
                f"Expected '{checkpoint}' to hold the weights of this configuration's policy, but '{name}' is "
                f"{shapes[1]} there and {shapes[0]} here, try the configuration that the checkpoint was trained with "
                "(config.yaml in the run's folder)."
            )


def is_remote(path: Any) -> bool:
    """Whether it is a name like ``s3://…``."""
    return "://" in str(path)
