"""The table of the driving comparison: scores of every run's test, means and standard deviations over seeds."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import mean, stdev
from typing import Any

COLUMNS = ("NC", "DAC", "DDC", "TLC", "EP", "HC", "EPDMS", "ADE@4s")
STAGES = {"stage_one": "S1", "stage_two": "S2"}
Scores = dict[str, dict[str, Any]]


def collect(logs: Path, known: Path, runs: list[str]) -> Scores:
    """The policy's scores by run: those that a former collection saved, and those of the logs here.

    Args:
        logs: folder with ``<run>/version_N/scores.json``, as `DrivingScores` writes them.
        known: the JSON file of the collection, which is renewed.
        runs: names of those that are finished.
    """
    found: Scores = json.loads(known.read_text()) if known.exists() else {}
    for name in runs:
        files = sorted(logs.glob(f"{name}/*/scores.json"), key=lambda file: file.stat().st_mtime)
        if files:
            found[name] = json.loads(files[-1].read_text())["drivers"]["policy"]
    kept = {name: found[name] for name in runs if name in found}
    known.parent.mkdir(parents=True, exist_ok=True)
    known.write_text(json.dumps(kept, indent=1) + "\n")
    return kept


def table(scores: Scores, others: Scores) -> str:
    """Markdown. A method's row for each stage, and its EPDMS over both.

    Args:
        scores: by run, ``<method>_seed<number>``.
        others: of drivers without a run, by their names.
    """
    methods: dict[str, list[dict[str, Any]]] = {name: [one] for name, one in others.items()}
    for name, one in scores.items():
        methods.setdefault(re.sub(r"_seed\d+$", "", name), []).append(one)
    lines = [
        "| | seeds | stage | " + " | ".join(COLUMNS) + " | EPDMS, both |",
        "|---" * (len(COLUMNS) + 4) + "|",
    ]
    for name, seeds in methods.items():
        for stage, short in STAGES.items():
            known = [one[stage] for one in seeds if one[stage]]
            if known:
                cells = [_cell([one[column] for one in known]) for column in COLUMNS]
                both = _cell([one["both"]["EPDMS"] for one in seeds if one["both"]]) if short == "S1" else ""
                head = f"{name} | {len(seeds)}" if short == "S1" else " | "
                lines.append(f"| {head} | {short} | " + " | ".join(cells) + f" | {both} |")
    return "\n".join(lines) + "\n"


def _cell(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    spread = f" ± {stdev(known):.3f}" if len(known) > 1 else ""
    return f"{mean(known):.3f}{spread}"
