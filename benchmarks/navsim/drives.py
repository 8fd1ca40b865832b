"""Pictures of ten held-out generated scenes before (left) and after training: of a hundred, the five whose mean EPDMS
gains most, and the five that lose most.

python -m lightning_cgrpo export -c configs/navsim.yaml --out models/trained
python -m benchmarks.navsim.drives packaged:driver models/trained docs/results/navsim/drives.png
"""

from __future__ import annotations

import argparse
from io import BytesIO
from pathlib import Path

import torch
from matplotlib import pyplot as plt
from PIL import Image

from benchmarks.navsim.answers import Driver, test_prompts
from lightning_cgrpo import GeneratedScenes
from lightning_cgrpo.callbacks.driving.pictures import picture
from lightning_cgrpo.core.rollout import PromptGroups
from lightning_cgrpo.tasks.driving.task import DrivingTask, ScoredAnswers
from navsim_score.traffic.reactive import Reactive

SCENES, ANSWERS, SHOWN = 100, 4, 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", help="a directory, or packaged:driver")
    parser.add_argument("after", help="a directory")
    parser.add_argument("out", type=Path, help="PNG file")
    parser.add_argument("--seed", type=int, default=1, help="of the generator; default: %(default)s, the training's")
    options = parser.parse_args()
    torch.set_num_threads(1)
    task = DrivingTask(traffic=Reactive(), human_filter=True)
    prompts = list(test_prompts(GeneratedScenes(options.seed), SCENES))
    drives: list[list[ScoredAnswers]] = []
    means = []
    for model in (options.before, options.after):
        driver, driven, scores = Driver(model, ANSWERS), [], []
        for batch in prompts:
            rollouts = driver(batch)
            scores.append(task.score(batch, rollouts)["epdms"].value.mean(1))
            driven += rollouts.info["drives"]
        drives.append(driven)
        means.append(torch.cat(scores))
    order = (means[1] - means[0]).argsort(descending=True, stable=True).tolist()
    rows = [*order[:SHOWN], *order[-SHOWN:]]
    images = [[_image(prompts, row, driven[row]) for driven in drives] for row in rows]
    width, height = (max(size) for size in zip(*(image.size for pair in images for image in pair), strict=True))
    sheet = Image.new("RGB", (2 * width, len(rows) * height), "white")
    for place, pair in enumerate(images):
        for side, image in enumerate(pair):
            sheet.paste(image, (side * width, place * height))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    sheet.quantize(128).save(options.out)
    before, after = (float(mean.mean()) for mean in means)
    print(f"Wrote {options.out}; mean EPDMS {before:.3f} before and {after:.3f} after, of {SCENES} scenes.")
    for row in rows:
        print(f"  scene {row}: {float(means[0][row]):.3f} -> {float(means[1][row]):.3f}")


def _image(prompts: list[PromptGroups], row: int, drive: ScoredAnswers) -> Image.Image:
    batch, place = divmod(row, len(prompts[0]))
    columns = prompts[batch].columns
    figure, file = picture(columns["scene"][place], columns["prompt"][place], drive), BytesIO()
    figure.savefig(file, format="png", dpi=50)
    plt.close(figure)
    return Image.open(file)


if __name__ == "__main__":
    main()
