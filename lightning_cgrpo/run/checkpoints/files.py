"""Choose a file of a run: the newest checkpoint, or the best. Imports no torch, so that a command starts at once."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.run.checkpoints.header import read_header, updates_done
from lightning_cgrpo.run.checkpoints.replacement import put_back

__all__ = ["CHECKPOINTS", "LAST", "best_of", "is_remote", "newest", "put_back", "version_number", "written_in"]

LAST = "last.ckpt"
CHECKPOINTS = "checkpoints"
"""The folder of a run's checkpoints, in the run's folder."""


def is_remote(path: Any) -> bool:
    """True for URLs, such as ``s3://…``."""
    return "://" in str(path)


def version_number(checkpoint: Path) -> int:
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
    # The newest checkpoint of each folder.
    newest_by_folder = []
    for folder in folders:
        put_back(folder)
        last = folder / LAST
        if last.exists():
            newest_by_folder.append(last)
            continue
        others = sorted(folder.glob("*.ckpt"))
        if others:
            newest_by_folder.append(max(others, key=updates_done))
    if not newest_by_folder:
        return None

    def newness(path: Path) -> tuple[int, float, str]:
        return version_number(path), updates_done(path), str(path)

    # The last version's checkpoint, unless another version trained longer.
    chosen = max(newest_by_folder, key=newness)
    for other in newest_by_folder:
        if updates_done(chosen) < updates_done(other) < math.inf:
            raise UserError(
                f"Expected one newest checkpoint, but got '{chosen}' after update {updates_done(chosen)} and '{other}' "
                f"after update {updates_done(other)}, try --ckpt_path=FILE with one."
            )
    return chosen


def best_of(last: Path) -> tuple[Path, str] | None:
    """The best checkpoint that the checkpoint `last` knows of, and the metric; None if the run ranks no checkpoints.

    Raises:
        UserError: the best checkpoint is gone, or `last` is damaged.
    """
    state = _ranking_state(read_header(last))
    # Without a score, a checkpoint is the newest, not the best.
    if state is None or not state["best_model_path"] or state.get("best_model_score", 0) is None:
        return None
    best = Path(state["best_model_path"])
    monitor = str(state["monitor"])
    # The run's folder may have moved since.
    moved = last.parent / os.path.relpath(best, state["dirpath"] or best.parent)
    for path in (best, moved):
        put_back(path.parent)
        if path.exists():
            return path, monitor
    raise UserError(f"Expected the best checkpoint by {monitor} at '{best}', but it is gone, try --ckpt_path=last.")


def written_in(checkpoint: Path) -> Path | None:
    """The folder that a run wrote a checkpoint into, of which the file may be a copy; None if it is not there."""
    for state in _callback_states(read_header(checkpoint)):
        folder = state.get("dirpath")
        if isinstance(folder, str) and folder and Path(folder).is_dir():
            return Path(folder)
    return None


def _ranking_state(content: dict[str, Any]) -> dict[str, Any] | None:
    """The state of the checkpoint callback that ranks by a metric; None without."""
    for state in _callback_states(content):
        if "best_model_path" in state and state["monitor"] is not None:
            return state
    return None


def _callback_states(content: dict[str, Any]) -> list[dict[str, Any]]:
    states = content.get("callbacks")
    if not isinstance(states, dict):
        return []
    return [state for state in states.values() if isinstance(state, dict)]
