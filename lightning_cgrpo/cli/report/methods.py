"""Runs of one method, one per seed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.output import SUMMARY
from lightning_cgrpo.objective.bound import Bound
from lightning_cgrpo.run.identity import key_of
from lightning_cgrpo.run.record import RunRecord
from lightning_cgrpo.run.runs import Run, earlier_folder, read_record, read_run, saved_run
from lightning_cgrpo.run.series import Series
from lightning_cgrpo.settings.configuration import get, short_class
from lightning_cgrpo.settings.effects import learning

TASK = "model.init_args.task"

Source = tuple[str | None, Path]
"""A path of runs, with the user's name for them or None."""
MethodAndSeed = tuple[str, int | None]
"""The key of a method, and the seed of a run."""


@dataclass(frozen=True)
class MethodRuns:
    """A method's runs, one per seed."""

    label: str
    runs: list[Run]

    @property
    def bounds(self) -> dict[str, Bound]:
        return self.runs[0].bounds

    @property
    def enforced(self) -> dict[str, Bound]:
        return self.runs[0].enforced

    @property
    def conditions(self) -> dict[str, str]:
        """The signals that conditions name, by constraint."""
        constraints = self.runs[0].record.constraints
        return {name: declared.given for name, declared in constraints.items() if declared.given is not None}

    @property
    def tags(self) -> list[str]:
        """The tags that any run logged, in the order of the logs."""
        tags: dict[str, None] = {}
        for run in self.runs:
            tags |= dict.fromkeys(run.series)
        return list(tags)

    def series(self, tag: str) -> list[Series]:
        return [run.series[tag] for run in self.runs if tag in run.series]

    @property
    def finished(self) -> bool:
        return all(run.finished for run in self.runs)

    @property
    def title(self) -> str:
        return self.label if self.finished else f"{self.label} ({self.progress})"

    @property
    def progress(self) -> str:
        """Updates done, and asked of unfinished runs."""
        done = sorted({run.updates for run in self.runs})
        text = f"{done[0]:,}"
        if len(done) > 1:
            text += f" to {done[-1]:,}"
        asked = max((run.record.asked or 0 for run in self.runs if not run.finished), default=0)
        if asked:
            text += f" of {asked:,}"
        return text


def collect(sources: Sequence[Source]) -> dict[str, list[MethodRuns]]:
    """Methods by task, from all runs below the sources.

    Args:
        sources: paths, with the user's names for their runs.

    Raises:
        UserError: for a missing path, a path without runs, or a damaged file.
    """
    # Runs with equal settings are the seeds of one method.
    methods: dict[str, MethodRuns] = {}
    for (key, _), (name, run) in _read_runs(sources).items():
        if key not in methods:
            label = name or re.sub(r",seed=\d+", "", run.record.name)
            methods[key] = MethodRuns(_number_label(label, methods.values()), [])
        methods[key].runs.append(run)
    if not methods:
        where = ", ".join(str(path) for _, path in sources)
        raise UserError(f"Found no run in {where}, try a folder of runs: `fit` writes {SUMMARY} beside each log.")

    # A report compares methods of one task.
    tasks: dict[str, list[MethodRuns]] = {}
    for method in methods.values():
        method.runs.sort(key=lambda run: run.seed or 0)
        task = short_class(get(method.runs[0].record.method, TASK)).removesuffix("Task") or "runs"
        tasks.setdefault(task, []).append(method)
    return tasks


def _number_label(label: str, methods: Iterable[MethodRuns]) -> str:
    """The label, with a number if other methods have the same label."""
    same = [method for method in methods if method.label.partition(" #")[0] == label]
    return f"{label} #{len(same) + 1}" if same else label


def _read_runs(sources: Sequence[Source]) -> dict[MethodAndSeed, tuple[str | None, Run]]:
    """Runs with the user's names, by method and seed."""
    records = _read_records(sources)
    # A run that another run resumed from is a part of the later run.
    continued = {earlier_folder(file.parent, record) for file, (_, record) in records.items()}
    runs: dict[MethodAndSeed, tuple[str | None, Run]] = {}
    for file, (name, record) in records.items():
        if file.parent in continued:
            continue
        run = read_run(file.parent, record) if record.saved is None else saved_run(record)
        if run is None:
            continue
        key = key_of({"name": name, **_method_identity(record)}), record.seed
        # Of several starts of a method and seed, the start that went furthest counts, and the newest of equal starts.
        if key not in runs or runs[key][1].updates <= run.updates:
            runs[key] = name, run
    return runs


def _read_records(sources: Sequence[Source]) -> dict[Path, tuple[str | None, RunRecord]]:
    """Records of runs with the user's names, by file. A file in several sources counts once, under its first name."""
    records: dict[Path, tuple[str | None, RunRecord]] = {}
    for name, path in sources:
        if not path.exists():
            raise UserError(f"There is no '{path}' to read runs from.")
        files = sorted(path.rglob("*.json"), key=_natural_order) if path.is_dir() else [path]
        for file in files:
            record = read_record(file)
            if record is not None:
                records.setdefault(file.resolve(), (name, record))
    return records


def _method_identity(record: RunRecord) -> Mapping[str, object]:
    """Settings and starting weights; a run without settings, from Python, is known by its name."""
    method = learning(record.method) if record.method else {"run": record.name}
    return {"method": method, "weights": record.weights}


def _natural_order(path: Path) -> list[tuple[int, str]]:
    """A sort key that puts version_10 after version_9: numbers compare as numbers, and come after other text."""
    key: list[tuple[int, str]] = []
    for part in re.split(r"(\d+)", str(path)):
        if part.isdigit():
            key.append((int(part), ""))
        else:
            key.append((-1, part))
    return key
