"""Lightning's reader and writer of checkpoints: written completely or not at all, and refused if damaged."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO
from torch.distributed.checkpoint.api import CheckpointException

from lightning_cgrpo.core.errors import UserError, first_line
from lightning_cgrpo.run.checkpoints.damage import check_checkpoint, damage_error, find_damage
from lightning_cgrpo.run.checkpoints.files import is_remote
from lightning_cgrpo.run.checkpoints.header import SHARDED_LAST
from lightning_cgrpo.run.checkpoints.replacement import UNFINISHED, replace_checkpoint
from lightning_cgrpo.run.checkpoints.resumable import check_parts


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
                replace_checkpoint(unfinished, target)
        except BaseException as error:
            unfinished.unlink(missing_ok=True)
            if isinstance(error, (OSError, RuntimeError)):  # torch raises RuntimeError for a full disk
                raise write_error(target, error) from error
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
            problem = None if is_remote(path) else find_damage(Path(path))
            if problem is not None:
                raise damage_error(Path(path), problem) from error
            raise UserError(
                f"Expected '{path}' to be a checkpoint of tensors and plain containers, but got: {first_line(error)}."
            ) from error
        return check_parts(content, str(path))


def write_error(target: Path, error: Exception) -> UserError:
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
        for cause, _ in error.failures.values():
            if isinstance(cause, (OSError, RuntimeError)):
                return cause
        return None
    if not isinstance(error, (OSError, RuntimeError)):
        return None
    last = unfinished / SHARDED_LAST
    # Without a partial file, a collective has failed.
    partial = last.exists() and find_damage(last) is not None
    return error if partial else None
