"""The rates of the starting driver if it braked everywhere: the line that a declaration has to tell from training.

    python -m benchmarks.navsim.braked_line 2000    # scenes; a few minutes; prints a row per deceleration

The scenes are those of a first look at the main job, so thresholds can be compared with its certificate.
"""

from __future__ import annotations

import sys

import numpy as np
import torch

from benchmarks.navsim.answers import FORM, Driver
from benchmarks.navsim.braking import as_training, braked
from driving_scenes.generator import GeneratedScenes
from lightning_cgrpo.datamodules import NavsimDataModule
from lightning_cgrpo.tasks.completions import texts
from lightning_cgrpo.tasks.driving.answers import POSE_INTERVAL, AnswerFormat
from navsim_score.columns import SHORT

DECELERATIONS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
"""m/s²."""
RATES = ("NC", "DAC", "DDC", "EP")


def main(scenes: int) -> None:
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
    print("braked by, m/s²", *RATES, sep="\t")
    for deceleration in DECELERATIONS:
        print(deceleration, *(f"{np.nanmean(values[deceleration, name]):.4f}" for name in RATES), sep="\t")


if __name__ == "__main__":
    main(int(sys.argv[1]))
