"""A figure of the driving methods: progress against compliance, beside the starting model and three other drivers.

    python -m benchmarks.navsim.front docs/results/navsim/front.png docs/results/navsim/{main,methods}

Each folder has a scores.json (see `scores`); start.json, braked.json, main_job.json and braked_keep_progress.json lie
beside the folders. Progress is EP.
Compliance is the product of the means of NC, DAC and DDC. Both are official scores of the first stage. A small point is
a seed, a large point the mean.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import matplotlib.pyplot as plt

from benchmarks.navsim.scores import without_run
from lightning_cgrpo.cli.report.figures.style import DPI, METHODS, RC

NAMES = {
    "cgrpo_pooled_scale": "Constrained GRPO",
    "cgrpo_group_scale": "Constrained GRPO, each group's scale (the paper's)",
    "cgrpo_scalarized_rewards": "Constrained GRPO, scalarized rewards",
    "informed_weights": "informed weights",
    "informed_weights_scalarized_rewards": "informed weights, scalarized rewards",
    "equal_weights": "equal weights",
    "equal_weights_scalarized_rewards": "equal weights, scalarized rewards",
    "grpo_epdms": "GRPO with EPDMS",
    "ppo_epdms": "PPO with EPDMS",
    "ppo_lagrangian": "PPO-Lagrangian",
}
"""Methods in the order of the legend."""


def place(stage: dict[str, float]) -> tuple[float, float]:
    """Progress and compliance of a driver's first stage."""
    return stage["EP"], stage["NC"] * stage["DAC"] * stage["DDC"]


def places(folders: Sequence[Path]) -> dict[str, list[tuple[float, float]]]:
    """Each method's seeds."""
    runs: dict[str, dict[str, Any]] = {}
    for folder in folders:
        for run, scores in json.loads((folder / "scores.json").read_text()).items():
            runs.setdefault(re.sub(r"_seed\d+$", "", run), {})[run] = place(scores["stage_one"])
    return {method: list(runs[method].values()) for method in NAMES if method in runs}


@plt.rc_context(RC)
def draw(
    methods: dict[str, list[tuple[float, float]]],
    drivers: dict[str, tuple[float, float]],
    declared: dict[str, tuple[float, float]],
    path: Path,
) -> None:
    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for number, (method, seeds) in enumerate(methods.items()):
        color = METHODS[number % len(METHODS)]
        axes.scatter(*zip(*seeds, strict=True), s=12, color=color, alpha=0.5)
        middle = [mean(values) for values in zip(*seeds, strict=True)]
        marker = "o" if "Constrained" in NAMES[method] else "^" if "PPO" in NAMES[method] else "s"
        axes.scatter(*middle, s=70, color=color, marker=marker, label=NAMES[method], edgecolors="black")
    for color, (name, point) in zip(METHODS, declared.items(), strict=False):
        axes.scatter(*point, s=130, color=color, marker="*", label=name, edgecolors="black")
    for name, point in drivers.items():
        axes.scatter(*point, s=90, color="black", marker="*")
        axes.annotate(name, point, xytext=(0, 8), textcoords="offset points", ha="center", fontsize=9)
    axes.set_xlabel("progress (EP)")
    axes.set_ylabel("compliance (NC · DAC · DDC)")
    axes.legend(loc="lower left")
    figure.savefig(path, dpi=DPI)
    plt.close(figure)


def with_progress(folder: Path) -> dict[str, tuple[float, float]]:
    """Policies with a declared progress: of the main job, and the mean of those that also declare comfort."""
    job = json.loads((folder / "main_job.json").read_text())["drivers"]["policy"]
    drivers = json.loads((folder / "braked_keep_progress.json").read_text())["drivers"]
    trained = [place(driver["stage_one"]) for name, driver in drivers.items() if name.startswith("trained")]
    progress, compliance = (mean(values) for values in zip(*trained, strict=True))
    return {
        "Constrained GRPO, progress declared": place(job["stage_one"]),
        "Constrained GRPO, progress and comfort declared": (progress, compliance),
    }


def main(path: Path, *folders: Path) -> None:
    folder = folders[0].parent
    others = {name: place(driver["stage_one"]) for name, driver in without_run(folder).items()}
    draw(places(folders), others, with_progress(folder), path)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
