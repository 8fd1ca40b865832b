"""Record finished runs by configuration, so that no result is mistaken for another run's."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lightning_cgrpo.cli.configuration import get, is_class
from lightning_cgrpo.cli.configuration import read as read_config
from lightning_cgrpo.cli.method import method_of
from lightning_cgrpo.errors import UserError
from lightning_cgrpo.output import write_whole
from lightning_cgrpo.reporting.runs import LAST
from lightning_cgrpo.reporting.saved_runs import read
from lightning_cgrpo.studies.study import Run, configuration, updates

BEGUN, FINISHED, PROGRESS, OUTPUT = "begun.json", "finished.json", "progress.txt", "output.txt"
LEDGER = "ledger.json"
Record = dict[str, Any]


@cache
def fingerprint(run: Run) -> str:
    """Identify learning and tests: settings, seed, length, and initial weights.

    Classes are known by short names, so a class may move to another module.
    """
    config = configuration(run)
    settings = {key: _normalized(config.get(key)) for key in ("model", "data")}
    callbacks = config.get("callbacks") or {}
    start = get(config, "model.init_args.policy.init_args.model")
    begins = None if start is None else weights(start)
    learning = [settings, _normalized(callbacks.get("multipliers")), run.seed, updates(run), begins]
    trainer = config.get("trainer") or {}
    others = {name: callback for name, callback in callbacks.items() if name != "multipliers"}
    rest = method_of({"trainer": trainer, "callbacks": others})
    if not updates(run):
        rest |= {key: trainer.get(key) for key in ("max_epochs", "limit_train_batches")}
    # Appended only where there is any, so that the fingerprints of other runs stay the same.
    learning += [rest] if rest else []
    return hashlib.sha256(json.dumps(learning, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _normalized(value: Any) -> Any:
    """Drop seeds, model names and classes' modules; write ``X`` for ``{class_path: X}``."""
    if isinstance(value, list):
        return [_normalized(part) for part in value]
    if isinstance(value, str):
        return value.rpartition(".")[2] if is_class(value) else value
    if not isinstance(value, dict):
        return value
    kept = {name: _normalized(part) for name, part in value.items() if name not in ("seed", "model") and part != {}}
    return kept["class_path"] if list(kept) == ["class_path"] else kept


@cache
def weights(model: str) -> str:
    """Fingerprint of a model's files.

    Raises:
        UserError: if the files are not on this machine.
    """
    from huggingface_hub.errors import LocalEntryNotFoundError

    from lightning_cgrpo.policies.pretrained import origin

    try:
        return origin(model).fingerprint
    except LocalEntryNotFoundError:
        raise UserError(
            f"Expected a model to start from on this machine, but got '{model}', try downloading it."
        ) from None
    except FileNotFoundError as error:
        raise UserError(f"Expected a model to start from, but got '{model}': {error}.") from None


def machine() -> Record:
    """Describe this machine and its versions."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": models[0] if models else platform.processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "lightning")},
    }


def begun(run: Run) -> Record | None:
    """Notes on a run begun in its folder; none for a new run.

    Raises:
        UserError: if the folder holds another configuration's run, from which this run would resume.
    """
    record = read_json(run.folder / BEGUN)
    if record is None and any(run.folder.glob("version_*")):
        record = {"fingerprint": None}
    if record is not None and record["fingerprint"] != fingerprint(run):
        raise UserError(
            f"Expected '{run.folder}' to hold the run of the same configuration, but its run had another one, try "
            "removing the folder, or another name for the study or the variant."
        )
    return record


def note(run: Run, record: Record) -> None:
    """Keep notes on a begun run."""
    run.folder.mkdir(parents=True, exist_ok=True)
    write_whole(run.folder / BEGUN, json.dumps({"fingerprint": fingerprint(run), **record}) + "\n")


def finish(run: Run, spent: Record) -> None:
    """Mark a run finished, with training's cost."""
    done = progress(run)[0]
    each = answers_per_update(run)
    answers = {} if each is None else {"answers": done * each}
    record = {"fingerprint": fingerprint(run), "updates": done, **answers, **spent, **machine()}
    write_whole(run.folder / FINISHED, json.dumps(record) + "\n")


def answers_per_update(run: Run) -> int | None:
    """Answers that an update samples; the configuration in the logs, if any, includes defaults."""
    written = sorted(run.folder.glob("version_*/config.yaml"))
    config = read_config(written[-1]) if written else configuration(run)
    prompts = get(config, "data.init_args.prompts_per_update")
    group = get(config, "model.init_args.group_size")
    return prompts * group if isinstance(prompts, int) and isinstance(group, int) else None


def progress(run: Run) -> tuple[int, int | None]:
    """Updates done, and updates requested if known."""
    path = run.folder / PROGRESS
    done, total = map(int, path.read_text().split()) if path.exists() else (0, 0)
    return done, updates(run) or total or None


def state(run: Run) -> str:
    """Describe an unfinished run's state."""
    record = begun(run)
    if record is None:
        return "open"
    done, asked = progress(run)
    if "error" in record:
        return f"failed at {done:,}: {record['error']}"
    if record.get("trained"):
        return "trained, but not tested"
    return f"interrupted at {done:,}{f' of {asked:,}' if asked else ''}"


class Ledger:
    """Finished runs in folders on this machine, and in earlier sittings' results.

    Args:
        results: folder with ``ledger.json`` and reports.
        report: folder of the study's report, possibly elsewhere.
    """

    def __init__(self, results: Path, report: Path) -> None:
        self.path = results / LEDGER
        self.records: dict[str, Record] = read_json(self.path) or {}
        self.names = {record["fingerprint"]: name for name, record in self.records.items()}
        self.report = report
        # The report's own runs come first: another study's report may hold the same variant with an older default.
        self.saved = saved(results) | saved(report)

    def finished(self, run: Run) -> bool:
        return self.in_folder(run) or self.in_results(run)

    def in_folder(self, run: Run) -> bool:
        record = read_json(run.folder / FINISHED)
        return record is not None and record["fingerprint"] == fingerprint(run)

    def in_results(self, run: Run) -> bool:
        """Check if the results hold the run, under any name."""
        return self.names.get(fingerprint(run)) in self.saved

    def source(self, run: Run) -> Path:
        """Logs or saved file of a finished run."""
        return run.folder if self.in_folder(run) else self.saved[self.names[fingerprint(run)]]

    def record(self, run: Run) -> Record:
        """The record of a finished run."""
        found = read_json(run.folder / FINISHED) if self.in_folder(run) else None
        return found or self.records[self.names[fingerprint(run)]]

    def check(self, runs: Sequence[Run]) -> None:
        """Check that runs are distinct, and none would overwrite another.

        Raises:
            UserError: naming the two runs.
        """
        seen: dict[str, Run] = {}
        for run in runs:
            same = seen.setdefault(fingerprint(run), run)
            if same is not run:
                raise UserError(
                    f"Expected variants to differ in their learning, but '{same.variant}' and '{run.variant}' do not."
                )
            known = self.records.get(run.name)
            other = self.saved.get(run.name)
            if known is None or other is None or known["fingerprint"] == fingerprint(run):
                continue
            if not other.is_relative_to(self.report):
                raise UserError(
                    f"Expected the run '{run.name}' in {self.path} to be this study's, but another study has it in "
                    f"{other}, try another name for the variant, or other --results."
                )

    def write(self, runs: Sequence[Run]) -> None:
        """Enter finished runs, and save the ledger, a line per run."""
        for run in runs:
            if self.in_folder(run):
                self.records[self.names.get(fingerprint(run), run.name)] = self.record(run)
        lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(record)}" for name, record in sorted(self.records.items()))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self.path, f"{{\n{lines}\n}}\n")


def saved(results: Path) -> dict[str, Path]:
    """Finished runs' saved files in a report's folder, or in reports below a folder, by run folder name."""
    files: dict[str, Path] = {}
    for path in sorted([*results.glob("runs/*.json"), *results.glob("*/runs/*.json")]):
        with contextlib.suppress(ValueError):  # A file of another format is no saved run.
            run = read(path, LAST)
            if run is not None and run.finished:
                files |= {folder.split("/")[0]: path for folder in run.folders}
    return files


def read_json(path: Path) -> Record | None:
    """Read a JSON file; None if missing."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
