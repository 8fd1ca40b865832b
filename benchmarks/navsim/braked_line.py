"""The rates of the starting driver if it braked everywhere: the line that a declaration has to tell from training.

    python -m benchmarks.navsim.braked_line 2000    # scenes; a few minutes; prints a row per deceleration

The scenes are those of a first look at the main job. The last column is the chance that the look which
configs/ablations/navsim/beyond_braking.yaml declares certifies NC and progress, if the row's rates are the true ones.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
from scipy.special import bdtr

from benchmarks.navsim.answers import FORM, Driver
from benchmarks.navsim.braking import as_training, braked
from driving_scenes.generator import GeneratedScenes
from lightning_cgrpo.cli.arguments import read_arguments
from lightning_cgrpo.datamodules import NavsimDataModule
from lightning_cgrpo.objective.chance import DRAWS, Seen
from lightning_cgrpo.objective.look import Look
from lightning_cgrpo.settings.configuration import get
from lightning_cgrpo.tasks.completions import texts
from lightning_cgrpo.tasks.driving.answers import POSE_INTERVAL, AnswerFormat
from navsim_score.columns import SHORT

CONFIGS = ("-c", "configs/navsim.yaml", "-c", "configs/ablations/navsim/beyond_braking.yaml")
DECELERATIONS = (0.0, 0.2, 0.3, 0.4, 0.45, 0.5, 0.55, 0.6)
"""m/s²."""
RATES = ("NC", "DAC", "DDC", "EP")


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
        print(deceleration, *means, f"{chance(declared, columns['NC'], columns['EP']):.2f}", sep="\t")


def chance(declared: Any, complies: np.ndarray, progress: np.ndarray) -> float:
    """The chance that the look of an objective certifies both thresholds at the means of scenes, ``[N]`` each."""
    look, constraints = Look.declared(declared["look"]), declared["constraints"]
    assert look is not None
    draw = np.random.default_rng(0)
    # The exact test of a rate, and the betting test of a mean.
    collisions = draw.binomial(look.prompts, 1 - np.nanmean(complies), DRAWS)
    of_rate = bdtr(collisions.astype(float), look.prompts, 1 - constraints["NC"]["at_least"])
    missed, allowed = 1 - np.nanmean(progress), 1 - constraints["progress"]["mean_at_least"]
    seen = Seen(missed, allowed, False, 1.0, float("inf"), deviation=float(np.nanstd(progress)))
    mean, spread = seen.capital(missed, look.prompts)
    of_mean = np.exp(-np.maximum(mean + spread * draw.normal(size=DRAWS), 0))
    # Holm's last two steps: DAC and DDC are far above their thresholds.
    both = np.sort([of_rate, of_mean], axis=0) <= look.error / np.array([[2], [1]])
    return float(both.all(0).mean())


if __name__ == "__main__":
    main(int(sys.argv[1]))
