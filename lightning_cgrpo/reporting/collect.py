"""Finds runs, puts the folders of one run together, and groups runs by method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from lightning_cgrpo.errors import UserError
from lightning_cgrpo.reporting import logs, saved
from lightning_cgrpo.reporting.evaluations import add_evaluations
from lightning_cgrpo.reporting.folders import EVENTS, Folder, Track, found, read_folders
from lightning_cgrpo.reporting.labels import labels_of
from lightning_cgrpo.reporting.method import Method, get, key_of, seed_of
from lightning_cgrpo.reporting.notes import run_notes
from lightning_cgrpo.reporting.runs import Identity, MethodRuns, Run, constraints_of_runs, run_of_log

SAVED = "*.json"


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
    # Found below two of the sources, a file is read once, and has the first's name.
    events: dict[Path, tuple[Path, str | None]] = {}
    files: dict[Path, tuple[Path, str | None]] = {}
    for name, path in sources:
        if not path.exists():
            raise UserError(f"There is no '{path}' to read runs from.")
        for pattern, seen in ((EVENTS, events), (SAVED, files)):
            for file in found(path, pattern):
                seen.setdefault(file.resolve(), (file, name))
    folders = read_folders(dict(events.values()), track, notes)
    runs, places = _runs_of_logs(folders, last, notes)
    records = _records(files, last, notes)
    evaluated = [folder for folder in folders if not folder.trained]
    add_evaluations(runs, evaluated, places, _add_saved(runs, records), notes)
    if not runs:
        where = ", ".join(str(path) for _, path in sources)
        raise UserError(f"Found no run in {where}. " + (notes[0] if notes else "Expected TensorBoard logs of fit."))
    known = {*events, *records}
    for _, path in sources:
        if not any(file.is_relative_to(path.resolve()) for file in known):
            notes.append(f"Found no log and no saved run in {path}.")
    methods = _methods(list(runs.values()))
    return Collection(methods, notes + run_notes(methods, last))


def _records(
    files: Mapping[Path, tuple[Path, str | None]], last: float, notes: list[str]
) -> dict[Path, tuple[Run | None, str | None]]:
    """Saved runs with the names that the user gave; none in the place of one that can't be read, which is said."""
    records: dict[Path, tuple[Run | None, str | None]] = {}
    for resolved, (path, name) in files.items():
        try:
            run = saved.read(path, last)
        except ValueError as error:
            notes.append(f"Skipped {path}: this saved run can't be read ({error}).")
            records[resolved] = (None, name)
            continue
        if run is not None:
            records[resolved] = (run, name)
    return records


def _runs_of_logs(
    folders: Sequence[Folder], last: float, notes: list[str]
) -> tuple[dict[Identity, Run], dict[Path, Identity]]:
    """The runs, and whose each of the folders is."""
    together: dict[Identity, list[Folder]] = {}
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
    return runs, {folder.path.resolve(): identity for identity, parts in together.items() for folder in parts}


def _add_saved(runs: dict[Identity, Run], records: Mapping[Path, tuple[Run | None, str | None]]) -> list[Identity]:
    """Adds saved runs; of one that has a log too, what reaches further stays, and both give their evaluations.

    Returns:
        Which runs these are.
    """
    identities = []
    for run, name in records.values():
        if run is None:
            continue
        if name is not None:
            run = replace(run, method={**run.method, "name": name})
        identity = saved.identity(run)
        identities.append(identity)
        known = runs.get(identity)
        if known is None:
            runs[identity] = run
            continue
        first, second = (run, known) if run.updates > known.updates else (known, run)
        folders = tuple(dict.fromkeys([*first.folders, *second.folders]))
        runs[identity] = replace(first, evaluations={**second.evaluations, **first.evaluations}, folders=folders)
    return list(dict.fromkeys(identities))


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
