"""Resumed runs, and separate starts of a method and seed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from lightning_cgrpo.cli.configuration import get
from lightning_cgrpo.cli.method import key_of
from lightning_cgrpo.reporting.folders import Folder
from lightning_cgrpo.reporting.runs import Identity

Chain = list[Folder]
"""A run's folders, each resumed from the previous folder."""


def chains_of(folders: Sequence[Folder]) -> dict[Identity, list[Chain]]:
    """Starts of each method and seed: the furthest first, then the newest.

    A folder from which a run resumed counts as a start only if it went further than this run.
    """
    places = {folder.path.resolve(): folder for folder in folders}
    chains = {path: _chain(folder, places) for path, folder in places.items()}
    continued: dict[Path, float] = {}
    for chain in chains.values():
        for earlier in chain[:-1]:
            place = earlier.path.resolve()
            continued[place] = max(chain[-1].reached, continued.get(place, chain[-1].reached))
    starts: dict[Identity, list[Chain]] = {}
    for path, chain in chains.items():
        if path not in continued or continued[path] < chain[-1].reached:
            seed = chain[-1].seed
            identity = key_of(chain[0].method), chain[0].short if seed is None else seed
            starts.setdefault(identity, []).append(chain)
    for found in starts.values():
        found.sort(key=lambda chain: (chain[-1].reached, chain[-1].started), reverse=True)
    return starts


def shared_beginnings(shown: Sequence[Chain]) -> Iterator[str]:
    """Notes on runs that resumed from the same folder."""
    branches: dict[Path, list[str]] = {}
    for chain in shown:
        branches.setdefault(chain[0].path.resolve(), []).append(chain[-1].short)
    for path, names in branches.items():
        if len(names) > 1:
            beginning = "/".join(path.parts[-2:])
            yield f"{', '.join(names)} share their beginning, {beginning}: as seeds they are not independent."


def _chain(folder: Folder, places: Mapping[Path, Folder]) -> Chain:
    chain = [folder]
    while (earlier := _resumed_from(chain[0], places)) is not None and earlier not in chain:
        chain.insert(0, earlier)
    return chain


def _resumed_from(folder: Folder, places: Mapping[Path, Folder]) -> Folder | None:
    checkpoint = get(folder.config, "ckpt_path")
    if not isinstance(checkpoint, str):
        return None
    # <save_dir>/<name>/version_N/checkpoints/<file>
    trained, here = Path(checkpoint).parent.parent, folder.path.resolve()
    # A relative path starts in the command's folder: any folder above.
    candidates = [(base / trained).resolve() for base in (*here.parents, Path.cwd())]
    if not any(os.path.isdir(place) for place in candidates):  # False too if reading is forbidden.
        # Folders that moved together keep their last two names.
        candidates = [here.parent.parent.joinpath(*trained.parts[-2:])]
    found = next((places[place] for place in candidates if place in places), None)
    return found if found is not None and _continues(folder, found) else None


def _continues(later: Folder, earlier: Folder) -> bool:
    """Compare methods without weights, because only the first folder began from the method's weights."""
    methods = [{key: part for key, part in folder.method.items() if key != "weights"} for folder in (later, earlier)]
    return key_of(methods[0]) == key_of(methods[1])
