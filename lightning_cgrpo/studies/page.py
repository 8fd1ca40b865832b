"""A study's report: `report` over finished runs, with variants' differences and costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from lightning_cgrpo.reporting.command import main as report
from lightning_cgrpo.reporting.runs import LAST
from lightning_cgrpo.reporting.saved_runs import read
from lightning_cgrpo.studies.comparison import (
    TEST,
    TRAINING,
    Cost,
    Measured,
    cost_text,
    differences_text,
    tags_of,
    write_csv,
)
from lightning_cgrpo.studies.ledger import Ledger
from lightning_cgrpo.studies.study import Run

PREFIX = "test/"


def write_report(runs: Sequence[Run], ledger: Ledger, folder: Path) -> None:
    """Write finished runs' report, and show its summary."""
    report([*(f"{run.variant}={ledger.source(run)}" for run in runs), "--out", str(folder)])
    measured = _measured(runs, folder)
    costs = _costs(runs, ledger)
    parts = []
    if len(costs) > 1:
        parts += ["## Differences between variants\n", *(differences_text(found, w) for w, found in measured.items())]
    parts += ["## Cost\n", cost_text(costs, measured[TRAINING])]
    with (folder / "report.md").open("a", encoding="utf-8") as file:
        file.write("\n" + "\n".join(parts))
    write_csv(folder, measured, costs)


def _measured(runs: Sequence[Run], folder: Path) -> dict[str, Measured]:
    """Final and test values, as the report saved them."""
    training: dict[str, dict[int, dict[str, float]]] = {run.variant: {} for run in runs}
    test: dict[str, dict[int, dict[str, float]]] = {run.variant: {} for run in runs}
    for file in sorted((folder / "runs").glob("*.json")):
        saved = read(file, LAST)
        name = None if saved is None else saved.method.get("name")
        if saved is None or name not in training or saved.seed is None:
            continue
        training[name][saved.seed] = saved.final
        test[name][saved.seed] = {
            tag.removeprefix(PREFIX): value for tag, value in saved.evaluations.items() if tag.startswith(PREFIX)
        }
    found: dict[str, Measured] = {TRAINING: training, TEST: test}
    return {where: values for where, values in found.items() if where == TRAINING or tags_of(values)}


def _costs(runs: Sequence[Run], ledger: Ledger) -> Mapping[str, Mapping[int, Cost]]:
    costs: dict[str, dict[int, Cost]] = {}
    for run in runs:
        record = ledger.record(run)
        cost = Cost(int(record["updates"]), *(record.get(key) for key in ("answers", "cpu_seconds", "peak_mb")))
        costs.setdefault(run.variant, {})[run.seed] = cost
    return costs
