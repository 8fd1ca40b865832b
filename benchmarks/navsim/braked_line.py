"""The rates of the starting driver if it braked everywhere: the line that a declaration has to tell from training.

    python -m benchmarks.navsim.braked_line 2000    # scenes; a few minutes; prints a row per deceleration

The scenes are those of a first look at the main job. The last column is the chance that the look which
configs/ablations/navsim/beyond_braking.yaml declares is passed, if the row's rates are the true ones.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch

from benchmarks.navsim.answers import FORM, Driver
from benchmarks.navsim.braking import as_training, braked
from driving_scenes.generator import GeneratedScenes
from lightning_cgrpo.cli.arguments import read_arguments
from lightning_cgrpo.datamodules import NavsimDataModule
from lightning_cgrpo.objective.chance import Seen, drawn_p_values, share_certified
from lightning_cgrpo.objective.look import Look
from lightning_cgrpo.settings.configuration import get
from lightning_cgrpo.tasks.completions import texts
from lightning_cgrpo.tasks.driving.answers import POSE_INTERVAL, AnswerFormat
from navsim_score.columns import SHORT

CONFIGS = ("-c", "configs/navsim.yaml", "-c", "configs/ablations/navsim/beyond_braking.yaml")
DECELERATIONS = (0.0, 0.2, 0.3, 0.4, 0.45, 0.5, 0.55, 0.6)
"""m/s²."""
RATES = ("NC", "DAC", "DDC", "EP")
CERTAIN = 1e12
"""Answers behind a row's rates, which are taken as the true ones."""


def main(scenes: int) -> None:
    config, _ = read_arguments("fit", CONFIGS)
    declared = get(config, "model.init_args.objective")
    data = NavsimDataModule(1, GeneratedScenes(1), FORM, 1, 1, test_prompts=1_000, eval_prompts=50)
    start = Driver("packaged:driver", 1, FORM)
    values: dict[tuple[float, str], list[float]] = {}
    for prompts in data.certification(scenes).loader(data.eval_prompts, worker=True):
        scorer = as_training(prompts)
        answers = [text for group in texts(start(prompts)) for text in group]
        plans = AnswerFormat().trajectories(answers)
        row = torch.arange(len(plans))
        for deceleration in DECELERATIONS:
            columns = scorer(braked(plans, deceleration), row, POSE_INTERVAL).columns
            for name in RATES:
                column = columns[SHORT[name]].flatten().double()
                complies = column if name == "EP" else (column == 1).double()
                values.setdefault((deceleration, name), []).extend(complies.tolist())
    print("braked by, m/s²", *RATES, "chance", sep="\t")
    for deceleration in DECELERATIONS:
        columns = {name: np.array(values[deceleration, name]) for name in RATES}
        means = (f"{np.nanmean(column):.4f}" for column in columns.values())
        print(deceleration, *means, f"{chance(declared, columns):.2f}", sep="\t")


def chance(declared: Any, columns: dict[str, np.ndarray]) -> float:
    """The chance that the look of an objective certifies all constraints at the means of scenes, ``[N]`` by rate."""
    look, constraints = Look.declared(declared["look"]), declared["constraints"]
    assert look is not None
    known: list[Seen | None] = []
    for name in ("NC", "DAC", "DDC"):
        violated = 1 - float(np.nanmean(columns[name]))
        known.append(Seen(violated, 1 - constraints[name]["at_least"], single=True, worth=1.0, size=CERTAIN))
    missed, allowed = 1 - float(np.nanmean(columns["EP"])), 1 - constraints["progress"]["mean_at_least"]
    known.append(Seen(missed, allowed, False, 1.0, CERTAIN, deviation=float(np.nanstd(columns["EP"]))))
    return share_certified(drawn_p_values(known, look.prompts), look)


if __name__ == "__main__":
    main(int(sys.argv[1]))
