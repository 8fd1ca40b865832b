"""Damaged checkpoints: found by checksums, and refused with the newest whole checkpoint."""

from __future__ import annotations

import os
import zipfile
from functools import lru_cache
from pathlib import Path
from pickle import UnpicklingError

from lightning_cgrpo.core.errors import UserError, first_line
from lightning_cgrpo.run.checkpoints.files import is_remote, version_number
from lightning_cgrpo.run.checkpoints.header import SHARDED_LAST, updates_done


@lru_cache
def check_checkpoint(path: str) -> None:
    """Raise a `UserError` for a damaged checkpoint, naming the newest whole checkpoint; once per process."""
    if is_remote(path):
        return
    problem = find_damage(Path(path))
    if problem is not None:
        raise damage_error(Path(path), problem)


def damage_error(path: Path, problem: str) -> UserError:
    """The error for a damaged checkpoint, which names the newest other checkpoint of the run that is whole."""
    # The other checkpoints of the run, in the same folder and in those of other versions.
    absolute = path.absolute()
    beside = set(absolute.parent.glob("*.ckpt"))
    in_other_versions = set(absolute.parent.parent.parent.glob("*/checkpoints/*.ckpt"))
    others = (beside | in_other_versions) - {absolute}

    def newness(other: Path) -> tuple[float, bool, int]:
        return updates_done(other), other.parent == absolute.parent, version_number(other)

    # The first whole checkpoint ends the search, because checksums of a large file take seconds.
    newest_first = sorted(others, key=newness, reverse=True)
    hint = "and there is no other one"
    for other in newest_first:
        if find_damage(other) is None:
            hint = f"try --ckpt_path={os.path.relpath(other)}, the newest other one that is whole"
            break
    return UserError(f"Expected '{path}' to be a whole checkpoint, but it is damaged ({problem}), {hint}.")


def find_damage(path: Path) -> str | None:
    """A description of a checkpoint's damage, None if whole. torch itself compares no checksums."""
    if path.is_dir():
        from lightning_cgrpo.run.checkpoints.sharded import find_damaged_part

        if not (path / SHARDED_LAST).is_file():
            return f"{SHARDED_LAST} is missing"
        return find_damage(path / SHARDED_LAST) or find_damaged_part(path)
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
