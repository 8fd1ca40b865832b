"""Finds runs, puts the folders of one run together, and groups runs by method."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lightning_cgrpo.configuration import Config, ConfigError
from lightning_cgrpo.configuration import read as read_config
from lightning_cgrpo.errors import UserError
from lightning_cgrpo.reporting import logs, saved
from lightning_cgrpo.reporting.labels import labels_of
from lightning_cgrpo.reporting.logs import EventsFile
from lightning_cgrpo.reporting.method import Method, get, key_of, method_of, seed_of
from lightning_cgrpo.reporting.runs import MethodRuns, Run, constraints_of_runs, run_of_log

EVENTS = "*.tfevents.*"
LARGEST_SAVED = 1_000_000
"""Bytes; a larger JSON file isn't a saved run."""

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
    def identity(self) -> tuple[str, Any]:
        """Of the run: its method, and its seed (or its folder, where no seed is told)."""
        seed = None if self.config is None else seed_of(self.config)
        return key_of(self.method), self.short if seed is None else seed


@dataclass(frozen=True)
class Collection:
    """All that was read.

    Args:
        methods: with their runs.
        notes: what the reader should know: what was left out, what is unfinished.
    """

    methods: list[MethodRuns]
    notes: list[str] = field(default_factory=list)


def collect(sources: Sequence[tuple[str | None, Path]], last: float, track: Track = iter) -> Collection:
    """Read all runs below the sources.

    Args:
        sources: folders or files, with the names that the user gives to what is found there.
        last: share of a run's updates that final values are over.
        track: shows the progress of reading.

    Raises:
        UserError: for a path that doesn't exist, or without any run.
    """
    notes: list[str] = []
    seen: set[Path] = set()
    events: dict[Path, tuple[str | None, list[Path]]] = {}
    records: dict[Path, str | None] = {}
    for name, path in sources:
        if not path.exists():
            raise UserError(f"There is no '{path}' to read runs from.")
        for file in _found(path, EVENTS):
            # Found below two of the sources, it is read once.
            if (resolved := file.resolve()) not in seen:
                seen.add(resolved)
                events.setdefault(file.parent, (name, []))[1].append(file)
        records |= {file: name for file in _found(path, "*.json") if file.stat().st_size <= LARGEST_SAVED}
    read = _read_files([file for _, files in events.values() for file in files], track, notes)
    folders = []
    for path, (name, files) in events.items():
        known = [read[file] for file in files if file in read]
        if any(file.scalars or file.evaluations for file in known):
            folders.append(Folder(path, name, _config(path, notes), known))
        else:
            notes.append(f"Skipped {path}: its log holds no updates and no evaluation.")
    runs = _runs_of_logs(folders, last, notes)
    _add_saved(runs, records, last, notes)
    _add_evaluations(runs, [folder for folder in folders if not folder.trained], notes)
    if not runs:
        where = ", ".join(str(path) for _, path in sources)
        raise UserError(f"Found no run in {where}. " + (notes[0] if notes else "Expected TensorBoard logs of fit."))
    methods = _methods(list(runs.values()))
    notes += _unfinished(methods)
    return Collection(methods, notes)


def _found(path: Path, pattern: str) -> list[Path]:
    if path.is_file():
        return [path] if path.match(pattern) else []
    # version_10 comes after version_9.
    return sorted(path.rglob(pattern), key=lambda file: [_natural(part) for part in file.parts])


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


def _runs_of_logs(folders: Sequence[Folder], last: float, notes: list[str]) -> dict[tuple[str, Any], Run]:
    together: dict[tuple[str, Any], list[Folder]] = {}
    for folder in folders:
        if folder.trained:
            together.setdefault(folder.identity, []).append(folder)
    runs = {}
    for identity, parts in together.items():
        parts = sorted(parts, key=lambda folder: folder.started)
        if len(parts) > 1:
            names = ", ".join(folder.short for folder in parts)
            again = [f.short for f in parts[1:] if not get(f.config, "ckpt_path")]
            note = f"Taken for one run, later steps winning: {names}."
            notes.append(note + (f" {', '.join(again)} began anew, though." if again else ""))
        newest = parts[-1].config or {}
        steps = get(newest, "trainer.max_steps")
        runs[identity] = run_of_log(
            logs.merged(file for folder in parts for file in folder.files),
            parts[0].method,
            seed_of(newest),
            steps if isinstance(steps, int) and steps > 0 else None,
            tuple(folder.short for folder in parts),
            last,
        )
    return runs


def _add_saved(
    runs: dict[tuple[str, Any], Run], records: dict[Path, str | None], last: float, notes: list[str]
) -> None:
    """Adds saved runs; of one that has a log too, what reaches further stays, and both give their evaluations."""
    for path, name in records.items():
        try:
            run = saved.read(path, last)
        except ValueError as error:
            notes.append(f"Skipped {path}: it is not a complete saved run ({error}).")
            continue
        if run is None:
            continue
        if name is not None:
            run = replace(run, method={**run.method, "name": name})
        identity = saved.identity(run)
        known = runs.get(identity)
        if known is None:
            runs[identity] = run
            continue
        first, second = (run, known) if run.updates > known.updates else (known, run)
        folders = tuple(dict.fromkeys([*first.folders, *second.folders]))
        runs[identity] = replace(first, evaluations={**second.evaluations, **first.evaluations}, folders=folders)


def _add_evaluations(runs: dict[tuple[str, Any], Run], folders: Sequence[Folder], notes: list[str]) -> None:
    """Gives what `test` and `validate` wrote to the runs whose checkpoints they evaluated."""
    for folder in sorted(folders, key=lambda folder: folder.started):
        checkpoint = get(folder.config, "ckpt_path")
        evaluated = "/".join(Path(str(checkpoint)).parts[-4:-2]) if checkpoint else ""
        owners = [identity for identity, run in runs.items() if evaluated and evaluated in run.folders]
        if folder.name is not None:
            owners = [i for i in owners if runs[i].method.get("name") == folder.name] or owners
        if len(owners) == 1:
            [owner] = owners
            found = logs.merged(folder.files).evaluations
            runs[owner] = replace(runs[owner], evaluations={**runs[owner].evaluations, **found})
        else:
            why = f"of {checkpoint}, whose run is not found among these" if checkpoint else "of no checkpoint"
            notes.append(f"Skipped {folder.path}: it holds an evaluation only, {why}.")


def _methods(runs: Sequence[Run]) -> list[MethodRuns]:
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(key_of(run.method), []).append(run)
    grouped = [sorted(group, key=lambda run: (run.seed or 0, run.folders)) for group in groups.values()]
    labels = _labels([group[0].method for group in grouped])
    return [
        MethodRuns(label, group[0].method, group, constraints_of_runs(group))
        for label, group in zip(labels, grouped, strict=True)
    ]


def _labels(methods: Sequence[Method]) -> list[str]:
    """A name that the user gave stands for its method, or before the labels of several; a folder for itself."""
    labels = [str(method.get("folder", "")) for method in methods]
    for name in dict.fromkeys(method.get("name") for method in methods):
        rows = [n for n, method in enumerate(methods) if method.get("name") == name]
        told = [n for n in rows if not labels[n]]
        bare = [{key: value for key, value in methods[n].items() if key != "name"} for n in told]
        for n, label in zip(told, labels_of(bare), strict=True):
            labels[n] = label
        for n in rows:
            label = labels[n]
            labels[n] = label if name is None else name if len(rows) == 1 else f"{name}: {label}"
    return labels


def _unfinished(methods: Sequence[MethodRuns]) -> list[str]:
    return [
        f"Unfinished: {method.label}, seed {run.seed}: {run.updates:,} of {run.max_updates:,} updates."
        for method in methods
        for run in method.runs
        if not run.finished
    ]
