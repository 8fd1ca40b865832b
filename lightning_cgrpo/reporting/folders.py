"""Log folders and their configurations."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lightning_cgrpo.cli.configuration import Config, ConfigError
from lightning_cgrpo.cli.configuration import read as read_config
from lightning_cgrpo.cli.method import Method, method_of, seed_of
from lightning_cgrpo.reporting import logs
from lightning_cgrpo.reporting.csv_logs import METRICS, read_csv, run_folder
from lightning_cgrpo.reporting.logs import EventsFile

LOGS = ("*.tfevents.*", METRICS)

Track = Callable[[Sequence[Path]], Iterable[Path]]


@dataclass(frozen=True)
class Folder:
    """A folder with a training log.

    Args:
        name: the user's name for its source; None without.
        config: None if unreadable.
        weights: fingerprint of the saved initial weights, if any.
    """

    path: Path
    name: str | None
    config: Config | None
    weights: str | None
    files: list[EventsFile]

    @property
    def short(self) -> str:
        return _short(self.path)

    @property
    def reached(self) -> float:
        return max(file.span[1] for file in self.files if file.span is not None)

    @property
    def started(self) -> float:
        return max(file.started for file in self.files if file.span is not None)

    @property
    def seed(self) -> int | None:
        return None if self.config is None else seed_of(self.config)

    @property
    def method(self) -> Method:
        method: Method = {"folder": self.short} if self.config is None else method_of(self.config, self.weights)
        return method if self.name is None else {"name": self.name, **method}


def found(path: Path, pattern: str) -> list[Path]:
    """Matching files below a folder, or the file itself; version_10 follows version_9."""
    if path.is_file():
        return [path] if path.match(pattern) else []
    return sorted(path.rglob(pattern), key=lambda file: [_natural(part) for part in file.parts])


def read_folders(found: Mapping[Path, str | None], track: Track, notes: list[str]) -> list[Folder]:
    """Read logs, given with the user's names, by folder; skipped files add notes.

    A CSV log beside events files repeats them, and is skipped.
    """
    events = {run_folder(file) for file in found if file.name != METRICS}
    together: dict[Path, list[EventsFile]] = {}
    names: dict[Path, str | None] = {}
    for file in track([file for file in found if file.name != METRICS or run_folder(file) not in events]):
        folder = run_folder(file)
        names.setdefault(folder, found[file])
        known = together.setdefault(folder, [])
        try:
            known.append((read_csv if file.name == METRICS else logs.read)(file))
        except OSError as error:
            notes.append(f"Skipped {file}: it can't be read ({error.strerror or error}).")
    folders = []
    for path, known in together.items():
        if any(file.span is not None for file in known):
            weights = _weights(path, notes)
            folders.append(Folder(path, names[path], _config(path, notes), weights, known))
        else:
            only = ", only an evaluation" if any(file.evaluations for file in known) else ""
            notes.append(f"Skipped {path}: its log holds no updates{only}.")
    return folders


def _short(folder: Path) -> str:
    return "/".join(folder.resolve().parts[-2:])


def _natural(text: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", text)]


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


def _weights(folder: Path, notes: list[str]) -> str | None:
    path = folder / "weights.json"
    if not path.is_file():
        return None
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["fingerprint"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        notes.append(f"{path} can't be read ({error!r}): its run is kept apart.")
        return f"unknown of {_short(folder)}"
