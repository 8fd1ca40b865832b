"""What is to be run: sets of configurations with seeds, and where they go."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

SILENT = ("initial_rates", "progress", "pictures", "drives", "samples", "table", "predictions")
"""Callbacks that only show something."""


@dataclass(frozen=True)
class Run:
    """One training run.

    Args:
        name: of its folder; unique.
        files: configurations, each on top of those before.
        overrides: settings on top of those.
        seed: of everything.
        updates: how many.
    """

    name: str
    files: tuple[str, ...]
    overrides: tuple[str, ...]
    seed: int
    updates: int

    def arguments(self, logs: str) -> list[str]:
        """What `fit` is called with; the logs go to ``<logs>/<name>``."""
        return [
            *(f"-c={file}" for file in self.files),
            *self.overrides,
            # Lanes share a process, and with it Lightning's seed.
            *(f"--{key}={self.seed}" for key in ("seed_everything", "model.seed", "data.seed")),
            f"--trainer.max_steps={self.updates}",
            f"--trainer.logger.save_dir={logs}",
            f"--trainer.logger.name={self.name}",
            "--trainer.enable_progress_bar=false",
            "--trainer.enable_model_summary=false",
            *(f"--callbacks.{name}=null" for name in SILENT),
        ]


@dataclass(frozen=True)
class Experiment:
    """Sets of runs, each of which gets a report.

    Args:
        name: of its folders, docs/results/<name> and runs/benchmark_<name>.
        help: of the command.
        sets: by name, what makes the runs.
        standard: the sets that are run by default.
        lanes: runs at a time in each process, whose rollouts are one batched computation.
        compared: by set, runs of other sets that its report has beside its own.
        extra: writes more beside a report: called with the folder of the logs, that of the report, and the names of the
            set's runs that are finished.
    """

    name: str
    help: str
    sets: Mapping[str, Callable[[], list[Run]]]
    standard: tuple[str, ...]
    lanes: int = 1
    compared: Mapping[str, Callable[[], list[Run]]] = field(default_factory=dict)
    extra: Callable[[Path, Path, list[str]], None] | None = None

    @property
    def results(self) -> Path:
        return Path("docs/results") / self.name

    @property
    def logs(self) -> Path:
        return Path("runs") / f"benchmark_{self.name}"
