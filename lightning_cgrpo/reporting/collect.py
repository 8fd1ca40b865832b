"""Find runs and group them by method and task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from lightning_cgrpo.cli.configuration import get
from lightning_cgrpo.cli.method import Method, key_of
from lightning_cgrpo.errors import UserError
from lightning_cgrpo.reporting import logs, saved_runs
from lightning_cgrpo.reporting.folders import LOGS, Track, found, read_folders
from lightning_cgrpo.reporting.groups import grouped
from lightning_cgrpo.reporting.labels import labels_of
from lightning_cgrpo.reporting.notes import notes_of
from lightning_cgrpo.reporting.runs import Identity, MethodRuns, Run, constraints_of_runs, run_of_log
from lightning_cgrpo.reporting.starts import Chain, chains_of, shared_beginnings

SAVED = "*.json"


@dataclass(frozen=True)
class TaskRuns:
    """A task's methods, and notes on them, the gravest first."""

    name: str
    methods: list[MethodRuns]
    notes: list[str]


@dataclass(frozen=True)
class Collection:
    """All runs of a report, and notes on their sources."""

    tasks: list[TaskRuns]
    notes: list[str] = field(default_factory=list)

    @property
    def methods(self) -> list[MethodRuns]:
        return [method for task in self.tasks for method in task.methods]


def collect(sources: Sequence[tuple[str | None, Path]], last: float, track: Track = iter) -> Collection:
    """Read all runs below the sources.

    Args:
        sources: paths, with the user's names for their runs.
        last: share of the updates in final values.

    Raises:
        UserError: for a missing path or a path without runs.
    """
    notes: list[str] = []
    # A file below two sources is read once, under the first source's name.
    events: dict[Path, tuple[Path, str | None]] = {}
    files: dict[Path, tuple[Path, str | None]] = {}
    for name, path in sources:
        if not path.exists():
            raise UserError(f"There is no '{path}' to read runs from.")
        for pattern, seen in (*((pattern, events) for pattern in LOGS), (SAVED, files)):
            for file in found(path, pattern):
                seen.setdefault(file.resolve(), (file, name))
    chains = chains_of(read_folders(dict(events.values()), track, notes))
    notes += shared_beginnings([starts[0] for starts in chains.values()])
    runs: dict[Identity, list[Run]] = {
        identity: [_run(chain, last) for chain in starts] for identity, starts in chains.items()
    }
    records = _records(files, last, notes)
    for run in records.values():
        if run is not None:
            _add_saved(runs.setdefault(run.identity, []), run)
    if not runs:
        where = ", ".join(str(path) for _, path in sources)
        raise UserError(
            f"Found no run in {where}. " + (notes[0] if notes else "Expected logs of fit, of TensorBoard or as CSV.")
        )
    known = {*events, *records}
    for _, path in sources:
        if not any(file.is_relative_to(path.resolve()) for file in known):
            notes.append(f"Found no log and no saved run in {path}.")
    return Collection(_tasks(list(runs.values()), last), notes)


def _records(files: Mapping[Path, tuple[Path, str | None]], last: float, notes: list[str]) -> dict[Path, Run | None]:
    records: dict[Path, Run | None] = {}
    for resolved, (path, name) in files.items():
        try:
            run = saved_runs.read(path, last)
        except ValueError as error:
            notes.append(f"Skipped {path}: this saved run can't be read ({error}).")
            records[resolved] = None
            continue
        if run is not None:
            records[resolved] = run if name is None else replace(run, method={**run.method, "name": name})
    return records


def _run(chain: Chain, last: float) -> Run:
    steps = get(chain[-1].config, "trainer.max_steps")
    return run_of_log(
        logs.merged([folder.files for folder in chain]),
        chain[0].method,
        chain[-1].seed,
        steps if isinstance(steps, int) and steps > 0 else None,
        tuple(folder.short for folder in chain),
        last,
    )


def _add_saved(starts: list[Run], run: Run) -> None:
    """Add a saved run to the `starts` of its method and seed, the furthest first.

    Of runs with a common folder, the run with more updates stays.
    """
    same = next((n for n, known in enumerate(starts) if set(known.folders) & set(run.folders)), None)
    if same is None:
        starts.append(run)
    else:
        known = starts[same]
        first, second = (run, known) if run.updates > known.updates else (known, run)
        if first.folders == second.folders:
            first = replace(first, evaluations={**second.evaluations, **first.evaluations})
        starts[same] = first
    starts.sort(key=lambda start: -start.updates)


def _tasks(runs: Sequence[list[Run]], last: float) -> list[TaskRuns]:
    together: dict[str, list[list[Run]]] = {}
    for starts in runs:
        together.setdefault(key_of(starts[0].method), []).append(starts)
    methods = []
    for found_runs in together.values():
        shown = sorted((starts[0] for starts in found_runs), key=lambda run: (run.seed or 0, run.folders))
        others = [run for starts in found_runs for run in starts[1:]]
        methods.append(MethodRuns("", shown[0].method, shown, constraints_of_runs(shown), others))
    tasks = []
    for name, members in grouped(methods):
        labels = _labels([method.method for method in members])
        labeled = [replace(method, label=label) for method, label in zip(members, labels, strict=True)]
        tasks.append(TaskRuns(name, labeled, notes_of(labeled, last)))
    return tasks


def _labels(methods: Sequence[Method]) -> list[str]:
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
