"""The closing card of ``fit``: whether the run worked, and the next commands, from its ``summary.json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from lightning_cgrpo.objective.bound import Bound
from lightning_cgrpo.objective.standing import Standing, compared
from lightning_cgrpo.output import SUMMARY, print_table

Record = dict[str, Any]
COLUMNS = {"before": "before", "end": "end of training", "last": "last validation", "best": "best checkpoint"}
"""Titles of the summary's measurements."""


def show_closing_card(folder: Path, test_prompts: str = "") -> None:
    """Print the card of the run in `folder`; nothing if the run wrote no summary.

    Args:
        test_prompts: the setting that names test prompts, if the configuration has none.
    """
    try:
        record: Record = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    print_table(closing_table(record))
    print("\n".join(closing_lines(record, folder, test_prompts)), flush=True)


def closing_table(record: Record) -> Table:
    """A row per constraint, and the reward's, with the measurements that the run has."""
    measured = {key: record["measured"][key] for key in COLUMNS if key in record["measured"]}
    if "best" in measured:
        measured.pop("last", None)
    title = f"Run {record['status']}" + (f": {record['error']}" if record["error"] else "")
    table = Table(title=Text(title), title_justify="left", box=SIMPLE_HEAD)
    for column in ("", *(COLUMNS[key] for key in measured)):
        table.add_column(column, overflow="fold")
    for name, declared in record["constraints"].items():
        bound = Bound(declared["kind"], declared["direction"], declared["threshold"])
        monitored = " (monitored)" if declared["role"] == "monitor" else ""
        values = [_value(part["constraints"].get(name), bound) for part in measured.values()]
        table.add_row(Text(f"{name} {bound}{monitored}"), *values)
    table.add_row("reward", *(_reward(part["reward"]) for part in measured.values()))
    return table


def closing_lines(record: Record, folder: Path, test_prompts: str = "") -> list[str]:
    """The best checkpoint, the run's size, and commands that can be copied."""
    asked = f" of {record['asked']:,}" if record["asked"] else ""
    answers = f", {record['answers']:,} answers" if record["answers"] else ""
    lines = [f"{record['updates']:,}{asked} updates{answers}, {record['seconds'] / 60:.1f} min."]
    if best := record["best"]:
        at = record["measured"]["best"]["update"]
        path = (folder / best["checkpoint"]).resolve()
        lines.append(f"Best checkpoint: {path}, of update {at:,}, by {best['monitor']} {best['score']:.4g}.")
        if best["score"] < 0 and str(best["monitor"]).endswith("merit"):
            lines.append("No validation shows that all thresholds are met; the best checkpoint is the nearest to that.")
    command, config = "python -m lightning_cgrpo", folder / "config.yaml"
    return [
        *lines,
        "Next:",
        f"  {command} test -c {config}{test_prompts}",
        f"  {command} certify -c {config}{test_prompts}",
        f"  {command} export -c {config} --out DIRECTORY",
        f"  tensorboard --logdir {folder.parent}",
    ]


def _value(measured: Record | None, bound: Bound) -> str:
    """A rate or mean with its interval and standing: ``0.941 (0.912-0.963) met``."""
    if measured is None or measured["value"] is None:
        return "-"
    text = f"{measured['value']:.4g}" if bound.of_mean else f"{measured['value']:.3f}"
    if "low" not in measured:
        return text
    standing: Standing = compared(bound, measured["low"], measured["high"])
    return f"{text} ({standing}) {standing.says}".rstrip()


def _reward(measured: Record) -> str:
    if measured["value"] is None:
        return "-"
    return f"{measured['value']:.4g}" + (f" ± {measured['error']:.2g}" if measured.get("error") else "")
