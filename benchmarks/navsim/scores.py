"""Test scores of the driving comparison: means and standard deviations over seeds.

    python -m lightning_cgrpo study configs/studies/navsim.yaml
    python -m benchmarks.navsim.scores runs/navsim docs/results/navsim/main

scores.json in the results keeps earlier sittings' scores. Rows without a run (the initial model, PDM-Closed, constant
velocity, the human) come from start.json beside the results, and the braked start and the oracle from braked.json:

    python -m lightning_cgrpo test -c configs/navsim.yaml --callbacks.scores.path=docs/results/navsim/start.json
    python -m benchmarks.navsim.braking docs/results/navsim/braked.json models/trained
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from navsim_score.dialects import same_dialect
from navsim_score.tables import SHOWN

STAGES = {"stage_one": "S1", "stage_two": "S2"}
START = "after SFT"
UNTRAINED = {"braked start": "start, braked", "oracle": "oracle: braked where the start violates"}
"""Rows by their name in braked.json; its other drivers have rows of their own."""
Scores = dict[str, dict[str, Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logs", type=Path, help="the study's folder of runs")
    parser.add_argument("results", type=Path, help="folder for scores.json and scores.md")
    options = parser.parse_args()
    results: Path = options.results
    scores = collect(options.logs, results / "scores.json")
    others = without_run(results.parent)
    # Drivers measured without follow-ups have scores of another dialect.
    shown = {name: one for name, one in others.items() if one["both"] or name not in UNTRAINED.values()}
    (results / "scores.md").write_text(table(scores, shown))


def without_run(folder: Path) -> Scores:
    """Drivers without a run, by name, from start.json and braked.json."""
    start, braked = folder / "start.json", folder / "braked.json"
    others: Scores = json.loads(start.read_text())["drivers"] if start.exists() else {}
    others = {START if name == "policy" else name: driver for name, driver in others.items()}
    if braked.exists():
        for name, driver in json.loads(braked.read_text())["drivers"].items():
            if name in UNTRAINED:
                others[UNTRAINED[name]] = driver
    return others


def collect(logs: Path, collection: Path) -> Scores:
    """The policy's scores by run, from earlier collections and finished runs.

    Args:
        logs: the study's folder, with ``<variant>,seed=<number>/version_N/scores.json``.
        collection: the collection's JSON file, updated here.
    """
    scores: Scores = json.loads(collection.read_text()) if collection.exists() else {}
    for summary in sorted(logs.glob("*/version_*/summary.json")):
        file = summary.with_name("scores.json")
        if json.loads(summary.read_text())["status"] == "finished" and file.exists():
            name = summary.parents[1].name.replace(",seed=", "_seed")
            scores[name] = json.loads(file.read_text())["drivers"]["policy"]
    collection.parent.mkdir(parents=True, exist_ok=True)
    collection.write_text(json.dumps(scores, indent=1) + "\n")
    return scores


def table(scores: Scores, others: Scores) -> str:
    """A Markdown table: a row per method and stage, and EPDMS over both stages.

    Args:
        scores: by run, ``<method>_seed<number>``.
        others: drivers without a run, by name.
    """
    methods: dict[str, list[dict[str, Any]]] = {name: [one] for name, one in others.items()}
    for name, one in scores.items():
        methods.setdefault(re.sub(r"_seed\d+$", "", name), []).append(one)
    named = [one["dialect"] for seeds in methods.values() for one in seeds if "dialect" in one]
    if named:  # scores of 2026-11 and before have no name
        same_dialect(named)
    lines = [
        "| | seeds | stage | " + " | ".join(SHOWN) + " | EPDMS, both |",
        "|---" * (len(SHOWN) + 4) + "|",
    ]
    for name, seeds in methods.items():
        for stage, short in STAGES.items():
            rows = [one[stage] for one in seeds if one[stage]]
            if rows:
                cells = [_cell([one[column] for one in rows]) for column in SHOWN]
                both = _cell([one["both"]["EPDMS"] for one in seeds if one["both"]]) if short == "S1" else ""
                head = f"{name} | {len(seeds)}" if short == "S1" else " | "
                lines.append(f"| {head} | {short} | " + " | ".join(cells) + f" | {both} |")
    return "\n".join(lines) + "\n"


def _cell(values: list[float | None]) -> str:
    present = [value for value in values if value is not None]
    if not present:
        return "-"
    spread = f" ± {stdev(present):.3f}" if len(present) > 1 else ""
    return f"{mean(present):.3f}{spread}"


if __name__ == "__main__":
    main()
