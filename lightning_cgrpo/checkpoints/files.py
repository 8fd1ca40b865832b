"""Checkpoint files: written completely or not at all, and refused if damaged."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO
from torch import Tensor

from lightning_cgrpo.checkpoints.integrity import check_checkpoint
from lightning_cgrpo.checkpoints.names import SHARDED_LAST, UNFINISHED, is_remote
from lightning_cgrpo.checkpoints.replacing import put, put_back
from lightning_cgrpo.errors import UserError, first_line


class CheckpointFiles(TorchCheckpointIO):
    """Writes a checkpoint beside its final name, then renames it; reads no damaged checkpoint and no pickled code.

    Lightning writes through the machine's temporary folder, which may be small or on another disk. Lightning handles
    URLs, because object stores replace objects atomically.
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
                # Before the rename, because a power failure could otherwise leave the name without its content.
                os.fsync(file.fileno())
            put(unfinished, target)
        except (OSError, RuntimeError) as error:  # torch raises RuntimeError for a full disk
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
    """The error for the user after a failed write."""
    # torch's own message for a full disk names a line of torch.
    reason = "the disk is full, or closed to this user" if isinstance(error, RuntimeError) else first_line(error)
    resume = ", and --ckpt_path=last: the checkpoint before is whole" if any(target.parent.glob("*.ckpt")) else ""
    return UserError(
        f"Expected to write the checkpoint '{target}', but got: {reason}, try to free space on the disk{resume}."
    )


def last_of(run: Path) -> Path | None:
    """The newest ``last.ckpt`` of a run's versions; `run` is a logger's folder."""
    for folder in run.glob("*/checkpoints"):
        put_back(folder)
    return max(run.glob("*/checkpoints/last.ckpt"), key=lambda path: path.stat().st_mtime, default=None)


def best_of(last: Path) -> Path:
    """The best checkpoint by the metric that `Checkpoints` monitors, as recorded in the checkpoint `last`."""
    file = last / SHARDED_LAST if last.is_dir() else last
    try:
        # Mapped, because only the callbacks' states are read, not the weights.
        loaded = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except (pickle.UnpicklingError, RuntimeError, OSError) as error:
        raise UserError(f"Expected '{last}' to be a whole checkpoint, but got: {first_line(error)}.") from error
    states = [state for state in loaded.get("callbacks", {}).values() if isinstance(state, dict)]
    state = next((state for state in states if "best_model_path" in state and state["monitor"] is not None), None)
    # Without a score, a checkpoint is the newest, not the best.
    if state is None or (state["best_model_path"] and state.get("best_model_score", 0) is None):
        raise UserError(
            f"Expected a run that monitors a metric for --ckpt_path=best, but '{last}' ranks no checkpoints, try "
            "--ckpt_path=last, or a run with validation and --callbacks.checkpoints.monitor=val/merit, mode=max."
        )
    if not state["best_model_path"]:
        raise UserError(
            f"Expected a checkpoint ranked by {state['monitor']}, but none had been written before '{last}', try "
            "--ckpt_path=last."
        )
    best = Path(state["best_model_path"])
    moved = last.parent / os.path.relpath(best, state["dirpath"] or best.parent)  # with the run's folder
    for path in (best, moved):
        put_back(path.parent)
        if path.exists():
            return path
    raise UserError(
        f"Expected the best checkpoint by {state['monitor']} at '{best}', but it is gone, try --ckpt_path=last."
    )


def check_weights(own: Mapping[str, Tensor], weights: Mapping[str, Tensor], checkpoint: str) -> None:
    """Raise a `UserError` unless weights have a checkpoint's names and shapes."""
    for name in {**own, **weights}:
        here, there = own.get(name), weights.get(name)
        if here is None or there is None or here.shape != there.shape:
            shapes = ["nothing" if weight is None else list(weight.shape) for weight in (here, there)]
            raise UserError(
                f"Expected '{checkpoint}' to hold the weights of this configuration's policy, but '{name}' is "
                f"{shapes[1]} there and {shapes[0]} here, try the configuration that the checkpoint was trained with "
                "(config.yaml in the run's folder)."
            )
