"""Pictures of ten drives on held-out generated scenes: the five best and the five worst of fifty by mean EPDMS.

python -m lightning_cgrpo export -c configs/navsim.yaml --out models/trained
python -m benchmarks.navsim.drives models/trained docs/results/navsim/drives.png
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
from lightning_cgrpo.navsim.traffic.reactive import Reactive
from lightning_cgrpo.tasks.driving.task import DrivingTask

SCENES, ANSWERS, SHOWN = 50, 4, 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a directory")
    parser.add_argument("out", type=Path, help="PNG file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    task = DrivingTask(traffic=Reactive(), human_filter=True)
    (prompts,) = test_prompts(GeneratedScenes(seed=1), SCENES)
    rollouts = Driver(options.model, ANSWERS)(prompts)
    epdms = task.score(prompts, rollouts)["epdms"].value.mean(1)
    order = epdms.argsort(descending=True, stable=True).tolist()
    images = []
    for row in (*order[:SHOWN], *order[-SHOWN:]):
        figure = picture(prompts.columns["scene"][row], prompts.columns["prompt"][row], rollouts.info["drives"][row])
        file = BytesIO()
        figure.savefig(file, format="png", dpi=60)
        plt.close(figure)
        images.append(Image.open(file))
    width, height = max(image.width for image in images), max(image.height for image in images)
    sheet = Image.new("RGB", (2 * width, SHOWN * height), "white")
    for place, image in enumerate(images):
        sheet.paste(image, (place // SHOWN * width, place % SHOWN * height))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    sheet.quantize(128).save(options.out)
    print(f"Wrote {options.out}; mean EPDMS {float(epdms.mean()):.3f} of {SCENES} scenes.")


if __name__ == "__main__":
    main()
