"""Lightning's reader and writer of checkpoints: written completely or not at all, and refused if damaged."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException

from lightning_cgrpo.checkpoints.files import (
    SHARDED_LAST,
    UNFINISHED,
    check_checkpoint,
    damage,
    damaged,
    is_remote,
    put,
)
from lightning_cgrpo.core.errors import UserError, first_line


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
        # `Checkpoints` asks for an unfinished name, and renames it on its own.
        unfinished = target if target.suffix == UNFINISHED else target.with_name(f"{target.name}{UNFINISHED}")
        try:
            with unfinished.open("wb") as file:
                torch.save(checkpoint, file)
                file.flush()
                # Before the rename, because a power failure could otherwise leave the name without its content.
                os.fsync(file.fileno())
            if unfinished != target:
                put(unfinished, target)
        except BaseException as error:
            unfinished.unlink(missing_ok=True)
            if isinstance(error, (OSError, RuntimeError)):  # torch raises RuntimeError for a full disk
                raise unwritten(target, error) from error
            raise

    def load_checkpoint(self, path: Any, map_location: Any = "cpu", weights_only: bool | None = None) -> dict[str, Any]:
        check_checkpoint(str(path))
        if not is_remote(path) and Path(path).is_dir():
            raise UserError(
                f"Expected '{path}' to be a file, but it is a sharded checkpoint, a directory, try "
                "--trainer.strategy=fsdp2, which reads it, or `python -m lightning_cgrpo export`, for a model of it."
            )
        try:
            content = super().load_checkpoint(path, map_location, weights_only is not False)
        except Exception as error:  # a damaged archive raises errors of all kinds
            # The file may have changed since its checksums were compared.
            if not is_remote(path) and (problem := damage(Path(path))) is not None:
                raise damaged(Path(path), problem) from error
            raise UserError(
                f"Expected '{path}' to be a checkpoint of tensors and plain containers, but got: {first_line(error)}."
            ) from error
        if not isinstance(content, dict):
            raise UserError(f"Expected '{path}' to hold a run's state, but got a {type(content).__name__}.")
        return content


def unwritten(target: Path, error: Exception) -> UserError:
    """The error for the user after a failed write."""
    # torch's own message for a full disk names a line of torch.
    reason = "the disk is full, or closed to this user" if isinstance(error, RuntimeError) else first_line(error)
    resume = ", and --ckpt_path=last: the checkpoint before is whole" if any(target.parent.glob("*.ckpt")) else ""
    return UserError(
        f"Expected to write the checkpoint '{target}', but got: {reason}, try to free space on the disk{resume}."
    )


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


def check_weights(expected: Mapping[str, Tensor], weights: Mapping[str, Tensor], checkpoint: str) -> None:
    """Raise a `UserError` unless a checkpoint's weights have the names and shapes of the policy's, `expected`."""
    for name in {**expected, **weights}:
        here, there = expected.get(name), weights.get(name)
        if here is None or there is None or here.shape != there.shape:
            shapes = ["nothing" if weight is None else list(weight.shape) for weight in (here, there)]
            raise UserError(
                f"Expected '{checkpoint}' to hold the weights of this configuration's policy, but '{name}' is "
                f"{shapes[1]} there and {shapes[0]} here, try the configuration that the checkpoint was trained with "
                "(config.yaml in the run's folder)."
            )


def check_resumable(content: Mapping[str, Any], checkpoint: str) -> None:
    """Refuse to resume from a checkpoint that lacks a part of a run's state; warn of an empty optimizer.

    Raises:
        UserError: no state of callbacks, loops or optimizers.
    """
    # A sharded checkpoint, which is read without weights here, keeps optimizers in other files.
    parts = ("callbacks", "loops", *(("optimizer_states",) if "state_dict" in content else ()))
    # A run from Python may have no callback with a state.
    if missing := [part for part in parts if part not in content or not (content[part] or part == "callbacks")]:
        raise UserError(
            f"Expected '{checkpoint}' to hold the whole state of a run, but it lacks {' and '.join(missing)}, without "
            "which no run resumes exactly, try another checkpoint."
        )
    optimizers = content.get("optimizer_states", [])
    # Gradient descent without momentum has no state.
    stateful = any(group.get("momentum") != 0 for optimizer in optimizers for group in optimizer["param_groups"])
    if stateful and content["global_step"] and not any(optimizer["state"] for optimizer in optimizers):
        warnings.warn(f"'{checkpoint}' holds no state of the optimizer, which begins anew.", stacklevel=2)
