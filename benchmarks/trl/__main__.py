"""This project's update and TRL's, side by side: CPU time on one thread, and memory.

    python -m benchmarks.trl                            # all settings, some 15 minutes of CPU time
    python -m benchmarks.trl --only 64,64,8             # given sizes: tokens of prompt and answer, answers
    python -m benchmarks.trl --out benchmarks/results/trl.json
    python -m benchmarks.trl released --help            # trainings of a released model, with their results

Both sides share the model (Qwen2 with random weights, 4.5 million parameters, a vocabulary of 2,048), four prompts per
update, four reward functions and the optimizer; all answers have the full length. Ours is `ConstrainedGRPO` in
Lightning's Trainer with multipliers and full logging. TRL's `GRPOTrainer` runs twice: unchanged, and projecting only
answers to the vocabulary, as on CUDA. Ratios are to the second run, and in brackets to the unchanged. `settings.py`
sets the goals. Equal losses and gradients are checked by tests/grpo/test_trl_oracle.py.

Each side runs alone in its own process: a warm-up with short prompts, then the measured updates. Times are CPU seconds
(user + system), which other load inflates: compare within a run. Memory is the peak above the process after the
warm-up. Needs Linux and TRL.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.trl import released
from benchmarks.trl.measure import in_process
from benchmarks.trl.settings import SETTINGS, Setting

SIDES = {"ours": 3, "trl": 1, "trl, answers only": 1}
"""Updates to measure; cheap updates more often."""
Measured = Mapping[str, Mapping[str, float]]
"""`Meter.results` by side."""

HEADER = (
    "| prompt, answer, group | beta, passes | ours s | TRL s | TRL, answers only s | update | rollout | training "
    "| memory | tokens | goals |\n|---|---|---|---|---|---|---|---|---|---|---|"
)


def measure(side: str, number: int, updates: int) -> dict[str, float]:
    """A side's numbers for the setting of this number."""
    return in_process("benchmarks.trl.worker", side, str(number), str(updates))


def ratios(setting: Setting, measured: Measured) -> dict[str, Any]:
    """How many times less this project takes than TRL projecting answers only.

    Updates and memory are also compared with unchanged TRL.
    """
    ours, stock, fair = (measured[side] for side in ("ours", "trl", "trl, answers only"))
    times = {name: fair[name] / ours[name] for name in ("update", "rollout", "training", "memory")}
    return {
        **times,
        "update, TRL as it is": stock["update"] / ours["update"],
        "memory, TRL as it is": stock["memory"] / ours["memory"],
        "tokens": setting.token_ratio,
        "update: goal met": times["update"] >= setting.times_faster,
        "memory: goal met": None if setting.times_smaller is None else times["memory"] >= setting.times_smaller,
    }


def row(setting: Setting, measured: Measured) -> str:
    times = ratios(setting, measured)
    seconds = " | ".join(f"{measured[side]['update']:.1f}" for side in ("ours", "trl", "trl, answers only"))
    goals = ", ".join(
        f"{what} {goal:g}x {'met' if times[f'{what}: goal met'] else 'MISSED'}"
        for what, goal in (("update", setting.times_faster), ("memory", setting.times_smaller))
        if goal is not None
    )
    sizes = f"{setting.prompt}, {setting.completion}, {setting.group} | {setting.kl_weight:g}, {setting.epochs}"
    return (
        f"| {sizes} | {seconds} "
        f"| {times['update']:.1f}x ({times['update, TRL as it is']:.1f}x) | {times['rollout']:.1f}x "
        f"| {times['training']:.1f}x | {times['memory']:.1f}x ({times['memory, TRL as it is']:.1f}x) "
        f"| {times['tokens']:.1f} | {goals} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = list(dict.fromkeys(setting.name for setting in SETTINGS))
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="P,C,G", help=f"of {names}")
    parser.add_argument("--out", type=Path, help="write the numbers as JSON")
    options = parser.parse_args()
    print(HEADER, flush=True)
    versions = {name: version(name) for name in ("torch", "transformers", "trl", "lightning")}
    record: dict[str, Any] = {"machine": platform.machine(), "cores": os.cpu_count(), **versions, "settings": []}
    for number, setting in enumerate(SETTINGS):
        if setting.name in options.only:
            measured = {side: measure(side, number, updates) for side, updates in SIDES.items()}
            print(row(setting, measured), flush=True)
            result = {"setting": vars(setting), "measured": measured, "ratios": ratios(setting, measured)}
            record["settings"].append(result)
            if options.out:
                options.out.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["released"]:
        released.main(sys.argv[2:])
    else:
        main()
