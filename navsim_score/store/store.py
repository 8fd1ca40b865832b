"""A folder of prepared scenes: `scenes.bin`, the records one after the other, and `index.json`."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from driving_scenes.cache import unfinished
from driving_scenes.errors import InputError, did_you_mean
from navsim_score.provenance import DIGITS, Provenance, scorer_version
from navsim_score.store.record import FIELDS, Record, from_bytes

RECORDS = "scenes.bin"
INDEX = "index.json"
FORMAT = [[name, str(kind), list(shape)] for name, (kind, shape) in FIELDS.items()]
"""Fields of a record, which a store must share with the package that reads it."""
KEPT = 4096
"""Opened scenes, some kilobytes each, because their numbers stay in the memory map."""
PAIR = 0.55
"""Most seconds between two original scenes of a log that are a pair, as in the devkit's script for one stage."""


@dataclass(frozen=True)
class Entry:
    """A scene of a store."""

    name: str  # the token
    previous: str | None  # name of the scene half a second before
    log: str | None
    seconds: float | None  # of t = 0 in the log; None is in no pair of its log
    size: int  # bytes of the record
    file: str | None = None  # name of the scene file without suffix; `previous` may be one, too


class Store:
    """Reads a store by memory map; a scene is opened once.

    Args:
        path: the folder that `write_store` wrote.

    A copy, also one sent to another process, opens the folder anew.

    Attributes:
        provenance: of scores by the package that opened the store.
        entries: scenes by name.

    Raises:
        InputError: no store, a store of another version, or one whose records are cut off.
    """

    def __init__(self, path: str | Path) -> None:
        folder = Path(path).resolve()
        self.path = folder
        written, entries = _read_index(folder)
        now = scorer_version()
        prepared_by = None if written.scorer == now else written.scorer
        self.provenance = replace(written, scorer=now, prepared_by=prepared_by)
        self.entries: dict[str, Entry] = {}
        self._places: dict[str, int] = {}
        place = 0
        for entry in entries:
            self.entries[entry.name] = entry
            self._places[entry.name] = place
            place += entry.size
        records = folder / RECORDS
        size = records.stat().st_size if records.is_file() else 0
        if size != place:
            raise InputError(
                f"Expected {records} to have {place:,} bytes, but got {size:,}, try to write the store again."
            )
        # Private, so that no reader can change the file; pages are read when they are needed.
        self._bytes = torch.from_file(str(records), shared=False, size=place, dtype=torch.uint8)
        self.record = lru_cache(KEPT)(self._read_record)

    def __reduce__(self) -> tuple[type[Store], tuple[Path]]:
        return type(self), (self.path,)

    def __len__(self) -> int:
        return len(self.entries)

    def entry(self, name: str) -> Entry:
        """A scene's line of the index.

        Raises:
            InputError: the store has no such scene.
        """
        if name not in self.entries:
            hint = did_you_mean(name, list(self.entries)[:1000])
            raise InputError(f"Expected scenes of the store, which has {len(self):,}, but got '{name}'.{hint}")
        return self.entries[name]

    def _read_record(self, name: str) -> Record:
        place = self._places[self.entry(name).name]
        return from_bytes(self._bytes[place : place + self.entries[name].size])


def write_store(path: str | Path, scenes: Iterable[tuple[Entry, bytes]], provenance: Provenance) -> Provenance:
    """Write a folder of records, and return the provenance with their digest.

    Records are written as they come, beside those of an earlier store, and replace them at the end. An earlier index is
    removed first and the new one comes last, so a store that is interrupted between them has none and is refused.

    Args:
        scenes: entries with the bytes of their records; at least one. Entries without a frame before get the frame of
            their log at most `PAIR` seconds earlier; a frame before may be named by its file.
        provenance: without the digest.

    Raises:
        InputError: no scenes, or two of one name.
    """
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    entries: dict[str, Entry] = {}
    total = hashlib.sha256()
    with unfinished(folder / RECORDS) as beside, beside.open("wb") as file:
        for entry, content in scenes:
            if entry.name in entries:
                same_name = (entries[entry.name], entry)
                files = [twin.file for twin in same_name if twin.file is not None]
                places = f", in the files {' and '.join(files)}" if files else ""
                raise InputError(
                    f"Expected scenes of different names, but got '{entry.name}' twice{places}; nothing was stored."
                )
            entries[entry.name] = entry
            total.update(content)
            file.write(content)
        if not entries:
            raise InputError("Expected at least one scene to store, but got none.")
        (folder / INDEX).unlink(missing_ok=True)
    scenes_of_index = [asdict(entry) for entry in _with_previous(entries)]
    total.update(json.dumps(scenes_of_index, sort_keys=True).encode())
    known = replace(provenance, digest=total.hexdigest()[:DIGITS])
    index = {"format": FORMAT, "provenance": asdict(known), "scenes": scenes_of_index}
    with unfinished(folder / INDEX) as beside:
        beside.write_text(json.dumps(index), encoding="utf-8")
    return known


def _with_previous(entries: dict[str, Entry]) -> list[Entry]:
    """Name the frame before of each scene whose log has one."""
    # Scenes of a log that follow each other closely are pairs.
    logs: dict[str, list[Entry]] = {}
    for entry in entries.values():
        if entry.log is not None and entry.seconds is not None:
            logs.setdefault(entry.log, []).append(entry)
    before: dict[str, str] = {}
    for frames in logs.values():
        frames.sort(key=lambda entry: entry.seconds or 0.0)
        for earlier, later in pairwise(frames):
            assert earlier.seconds is not None and later.seconds is not None
            if 0 < later.seconds - earlier.seconds <= PAIR:
                before[later.name] = earlier.name
    # A file's name goes before a scene's, as in `score`, unless files of several folders share it.
    files = Counter(entry.file for entry in entries.values())
    name_of_file = {entry.file: entry.name for entry in entries.values() if files[entry.file] == 1}
    paired = []
    for entry in entries.values():
        previous = before.get(entry.name)
        if entry.previous:
            previous = name_of_file.get(entry.previous, entry.previous)
        paired.append(replace(entry, previous=previous))
    return paired


def _read_index(folder: Path) -> tuple[Provenance, list[Entry]]:
    try:
        index: dict[str, Any] = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        known = index["format"]
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(
            f"Expected '{folder}' to be a folder that `python -m navsim_score store` wrote, but it has no {INDEX}."
        ) from None
    if known != FORMAT:
        raise InputError(
            f"Expected a store of this version, but {folder} has other fields, try to write the store again."
        )
    try:
        return Provenance(**index["provenance"]), [Entry(**fields) for fields in index["scenes"]]
    except (KeyError, TypeError) as error:
        raise InputError(f"The index of {folder} is damaged ({error}), try to write the store again.") from None
