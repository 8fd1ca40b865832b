"""Which runs are finished, of which configuration, and where: so that no result is taken for another's."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.runner.experiment import Run
from lightning_cgrpo.cli.arguments import read_arguments
from lightning_cgrpo.cli.configuration import get, is_class
from lightning_cgrpo.errors import UserError
from lightning_cgrpo.policies.pretrained import directory
from lightning_cgrpo.reporting.runs import LAST
from lightning_cgrpo.reporting.saved_runs import read

BEGUN, FINISHED = "begun.json", "finished.json"


@cache
def fingerprint(run: Run) -> str:
    """The same for the same learning and tests: settings, seed and length, and the weights that training starts from.

    Classes are known by their names alone, so that a class may move to another module.
    """
    config, _ = read_arguments("fit", run.arguments("logs"))
    settings = {key: _normalized(config[key]) for key in ("model", "data")}
    multipliers = _normalized(config["callbacks"].get("multipliers"))
    start = get(config, "model.init_args.policy.init_args.model")
    learning = [settings, multipliers, run.seed, run.updates, None if start is None else weights(start)]
    return hashlib.sha256(json.dumps(learning, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _normalized(value: Any) -> Any:
    """Settings without seeds, the name of a model, and the modules of classes; ``X`` for ``{class_path: X}``."""
    if isinstance(value, list):
        return [_normalized(part) for part in value]
    if isinstance(value, str):
        return value.rpartition(".")[2] if is_class(value) else value
    if not isinstance(value, dict):
        return value
    kept = {name: _normalized(part) for name, part in value.items() if name not in ("seed", "model") and part != {}}
    return kept["class_path"] if list(kept) == ["class_path"] else kept


@cache
def weights(model: str) -> list[str]:
    """Hashes of a model's files, which must be on this machine.

    Raises:
        UserError: they are not.
    """
    try:
        folder = directory(model)
    except FileNotFoundError as error:
        raise UserError(f"Expected a model to start from, but got '{model}': {error}.") from None
    if folder is None:
        raise UserError(f"Expected a model to start from on this machine, but got '{model}', try downloading it.")
    return [hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.glob("*.safetensors"))]


def machine() -> dict[str, Any]:
    """Where and with what a run is made."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": models[0] if models else platform.processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "lightning")},
    }


def begin(run: Run, logs: Path) -> None:
    """Note what a run's folder holds.

    Raises:
        ValueError: if it holds another configuration's run, from whose checkpoint this one would go on.
    """
    path = logs / run.name / BEGUN
    mark = fingerprint(run)
    if path.exists() and json.loads(path.read_text())["fingerprint"] != mark:
        raise ValueError(
            f"{path.parent} holds a run of another configuration or length; remove it, or give other --logs."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"fingerprint": mark}))


def finish(run: Run, logs: Path, seconds: float, cpu_seconds: float) -> None:
    """Note that a run is finished, after so many seconds, and so many of a core (both of its last sitting)."""
    spent = {"seconds": round(seconds, 1), "cpu_seconds": round(cpu_seconds, 1)}
    record = {"fingerprint": fingerprint(run), "updates": run.updates, **spent, **machine()}
    (logs / run.name / FINISHED).write_text(json.dumps(record))


class Ledger:
    """The finished runs, by name: those of the logs here, and those that the results tell of.

    Args:
        logs: folder of the runs' logs.
        results: folder of the reports, with a ``ledger.json``.
    """

    def __init__(self, logs: Path, results: Path) -> None:
        self.logs, self.path = logs, results / "ledger.json"
        self.records: dict[str, dict[str, Any]] = json.loads(self.path.read_text()) if self.path.exists() else {}
        self.saved = saved(results)

    def finished(self, run: Run) -> bool:
        return self.in_logs(run) or self.in_results(run)

    def in_logs(self, run: Run) -> bool:
        path = self.logs / run.name / FINISHED
        return path.exists() and json.loads(path.read_text())["fingerprint"] == fingerprint(run)

    def in_results(self, run: Run) -> bool:
        return run.name in self.saved and self.records.get(run.name, {}).get("fingerprint") == fingerprint(run)

    def enter(self, run: Run) -> None:
        """Take over what the logs know of a finished run."""
        self.records[run.name] = json.loads((self.logs / run.name / FINISHED).read_text())

    def write(self) -> None:
        """Save the records, a line each."""
        lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(record)}" for name, record in sorted(self.records.items()))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text(f"{{\n{lines}\n}}\n")
        temporary.replace(self.path)


def saved(results: Path) -> dict[str, Path]:
    """The files that reports saved of finished runs, by the run's name."""
    files = {}
    for path in sorted(results.glob("*/runs/*.json")):
        with contextlib.suppress(ValueError):  # Not complete.
            run = read(path, LAST)
            if run is not None and run.finished and run.evaluations:
                files |= {folder.split("/")[0]: path for folder in run.folders}
    return files
