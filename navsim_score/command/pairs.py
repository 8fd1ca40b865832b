"""Pairs of scene files and trajectory files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from driving_scenes import SCENE_SUFFIX
from driving_scenes.errors import InputError

if TYPE_CHECKING:
    from navsim_score.command.trajectory_file import Candidate

TRAJECTORIES_SUFFIX = ".trajs.json"


class Pair(NamedTuple):
    """A scene file, its name without suffix (stem), and its trajectory file or candidates."""

    stem: str
    scene: Path
    trajectories: Path | Sequence[Candidate]


def match_files(scenes: Path, trajectories: Path) -> tuple[list[Pair], list[str]]:
    """Pairs of files in the order of their stems, and notes on unpaired files.

    Args:
        scenes: a file, or a folder of ``*.scene.json``.
        trajectories: a file, or a folder of ``*.trajs.json``. Two files always pair. A submission (.pkl) or table
            (.csv) has the trajectories of many scenes, by their stems.

    Raises:
        InputError: if a path does not exist, or no two files match.
    """
    of_scenes = _files_by_stem(scenes, SCENE_SUFFIX, "--scenes")
    by_token = trajectories.suffix in (".pkl", ".csv")
    of_trajectories: Mapping[str, Path | Sequence[Candidate]]
    if by_token:
        of_trajectories = _candidates_by_token(trajectories)
    else:
        of_trajectories = _files_by_stem(trajectories, TRAJECTORIES_SUFFIX, "--trajectories")
    if scenes.is_file() and trajectories.is_file() and not by_token:
        [(_, file)] = of_trajectories.items()
        [(stem, scene)] = of_scenes.items()
        return [Pair(stem, scene, file)], []
    pairs = [Pair(stem, file, of_trajectories[stem]) for stem, file in of_scenes.items() if stem in of_trajectories]
    if not pairs:
        raise InputError(
            f"Expected a scene NAME{SCENE_SUFFIX} and its trajectories NAME{TRAJECTORIES_SUFFIX}, but got the scenes "
            f"{list_names(of_scenes)} and the trajectories of {list_names(of_trajectories)}, try files of the same "
            "NAME."
        )
    notes = []
    unpaired = [stem for stem in of_scenes if stem not in of_trajectories]
    # A single file of trajectories is not meant for the other scenes of the folder.
    if unpaired and (by_token or trajectories.is_dir()):
        notes.append(f"No trajectories for the scenes {list_names(unpaired)}.")
    unpaired = [stem for stem in of_trajectories if stem not in of_scenes]
    if unpaired and scenes.is_dir():
        notes.append(f"No scene for the trajectories of {list_names(unpaired)}.")
    return pairs, notes


def _candidates_by_token(path: Path) -> dict[str, list[Candidate]]:
    # Imported here, because --help must not wait for torch.
    if path.suffix == ".csv":
        from navsim_score.command.trajectory_file import read_table

        return read_table(path)
    from navsim_score.command.submission import read_submission

    return read_submission(path)


def list_names(stems: Iterable[str], most: int = 10) -> str:
    """List the first `most` stems; count the rest."""
    quoted = [f"'{stem}'" for stem in stems]
    text = ", ".join(quoted[:most])
    if len(quoted) > most:
        text += f" and {len(quoted) - most} more"
    return text


def _files_by_stem(path: Path, suffix: str, option: str) -> dict[str, Path]:
    if path.is_dir():
        files = {file.name.removesuffix(suffix): file for file in sorted(path.glob(f"*{suffix}"))}
        if not files:
            raise InputError(f"Expected {option} to be a folder with files *{suffix}, but '{path}' has none.")
        return files
    if not path.is_file():
        raise InputError(f"Expected {option} to be a file or a folder of *{suffix}, but there is no '{path}'.")
    if path.name.endswith(suffix):
        return {path.name.removesuffix(suffix): path}
    return {path.name.removesuffix(".json"): path}
