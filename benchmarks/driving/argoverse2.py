"""Mean EPDMS of the human, PDM-Closed and constant velocity on real Argoverse 2 scenes.

    python -m benchmarks.driving.argoverse2 FOLDER    # of logs; four (41 scenes) take 20 s; --each: every scene

Without extended comfort and human filter, with log replay; docs/navsim_score.md §17 has the official means.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from examples.scene_sources.argoverse2 import Argoverse2
from lightning_cgrpo.navsim.baselines import constant_velocity
from lightning_cgrpo.navsim.batch.scene_batch import ExpertPlan
from lightning_cgrpo.navsim.columns import COLUMNS
from lightning_cgrpo.navsim.expert.pdm_closed import plan
from lightning_cgrpo.navsim.scorer import Scorer, Scores
from lightning_cgrpo.navsim.simulation.interpolation import in_ego
from lightning_cgrpo.scenes.scene import Scene

OFFICIAL = {"human": 0.836, "PDM-Closed": 0.930, "constant velocity": 0.729}
"""The official scorer's means over 41 scenes."""
INTERVAL = 0.1
"""Seconds between the plan's poses; other candidates use 0.5 s."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, help="a folder of Argoverse 2 sensor logs")
    parser.add_argument("--each", action="store_true", help="every scene's scores, too")
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    start = time.perf_counter()
    scenes = list(Argoverse2(arguments.path, val_share=0, test_share=0).scenes("train"))
    read = time.perf_counter()
    plans = plan(scenes)
    planned = time.perf_counter()
    scorer = Scorer(scenes, plans=plans, human_filter=False)
    rows = torch.arange(len(scenes))
    humans = torch.stack([scene.human for scene in scenes if scene.human is not None])
    scores = {
        "human": scorer(humans, rows),
        "PDM-Closed": scorer(_driven(scenes, plans), rows, INTERVAL),
        "constant velocity": scorer(constant_velocity(scenes)[1], rows),
    }
    scored = time.perf_counter()

    console = Console()
    console.print(_means(scores))
    if arguments.each:
        console.print(_each(scenes, scores))
    failed = sum(int((~found.valid | found.epdms.isnan()).sum()) for found in scores.values())
    console.print(
        f"{len(scenes)} scenes, {failed} scores failed; read in {read - start:.1f} s, "
        f"planned in {planned - read:.1f} s, prepared and scored in {scored - planned:.1f} s."
    )


def _driven(scenes: list[Scene], plans: list[ExpertPlan]) -> Tensor:
    poses = torch.stack([found.trajectory for found in plans])
    origin = torch.stack([scene.ego.poses[-1] for scene in scenes])[:, None]
    return in_ego(origin, poses[:, 1:])


def _means(scores: dict[str, Scores]) -> Table:
    table = Table(title="Means")
    for heading in ("", *scores):
        table.add_column(heading, justify="right" if heading else "left")
    for name in COLUMNS:
        table.add_row(name, *(f"{float(found.unfiltered[name].mean()):.3f}" for found in scores.values()))
    table.add_row("epdms", *(f"{float(found.epdms.mean()):.4f}" for found in scores.values()))
    table.add_row("official", *(f"{OFFICIAL[who]:.3f}" for who in scores))
    return table


def _each(scenes: list[Scene], scores: dict[str, Scores]) -> Table:
    table = Table(title="EPDMS")
    for heading in ("scene", *scores):
        table.add_column(heading)
    for row, scene in enumerate(scenes):
        table.add_row(scene.name, *(f"{float(found.epdms[row]):.4f}" for found in scores.values()))
    return table


if __name__ == "__main__":
    main()
