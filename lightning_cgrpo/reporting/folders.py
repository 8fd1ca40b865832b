"""Folders with logs: finding and reading them, and what each is of."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lightning_cgrpo.cli.configuration import Config, ConfigError
from lightning_cgrpo.cli.configuration import read as read_config
from lightning_cgrpo.reporting import logs
from lightning_cgrpo.reporting.logs import EventsFile
from lightning_cgrpo.reporting.method import Method, key_of, method_of, seed_of
from lightning_cgrpo.reporting.runs import Identity

EVENTS = "*.tfevents.*"

Track = Callable[[Sequence[Path]], Iterable[Path]]


@dataclass(frozen=True)
class Folder:
    """A folder with a log.

    Args:
        name: what the user called what is found there, if anything.
        config: none if there is none.
    """

    path: Path
    name: str | None
    config: Config | None
    files: list[EventsFile]

    @property
    def short(self) -> str:
        """As Lightning builds it: ``name/version_N``."""
        return "/".join(self.path.resolve().parts[-2:])

    @property
    def trained(self) -> bool:
        return any(file.span is not None for file in self.files)

    @property
    def started(self) -> float:
        return max(file.started for file in self.files)

    @property
    def method(self) -> Method:
        method: Method = {"folder": self.short} if self.config is None else method_of(self.config)
        return method if self.name is None else {"name": self.name, **method}

    @property
    def identity(self) -> Identity:
        """Of the run: its method, and its seed (or its folder, where no seed is told)."""
        seed = None if self.config is None else seed_of(self.config)
        return key_of(self.method), self.short if seed is None else seed


def found(path: Path, pattern: str) -> list[Path]:
    """The files below a folder, or the file itself, in natural order: version_10 comes after version_9."""
    if path.is_file():
        return [path] if path.match(pattern) else []
    return sorted(path.rglob(pattern), key=lambda file: [_natural(part) for part in file.parts])


def read_folders(events: Mapping[Path, str | None], track: Track, notes: list[str]) -> list[Folder]:
    """The folders of events files, which come with the names that the user gave."""
    together: dict[Path, list[Path]] = {}
    for file in events:
        together.setdefault(file.parent, []).append(file)
    read = _read_files(list(events), track, notes)
    folders = []
    for path, files in together.items():
        known = [read[file] for file in files if file in read]
        if any(file.scalars or file.evaluations for file in known):
            folders.append(Folder(path, events[files[0]], _config(path, notes), known))
        else:
            notes.append(f"Skipped {path}: its log holds no updates and no evaluation.")
    return folders


def _natural(text: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", text)]


def _read_files(files: Sequence[Path], track: Track, notes: list[str]) -> dict[Path, EventsFile]:
    read = {}
    for file in track(files):
        try:
            read[file] = logs.read(file)
        except OSError as error:
            notes.append(f"Skipped {file}: it can't be read ({error.strerror or error}).")
    return read


def _config(folder: Path, notes: list[str]) -> Config | None:
    path = folder / "config.yaml"
    if not path.is_file():
        notes.append(f"{folder} has no config.yaml: its folder is taken for its method, and thresholds for at_most.")
        return None
    try:
        return read_config(path)
    except ConfigError as error:
        notes.append(f"{error} The folder is taken for the method, and thresholds for at_most.")
        return None
