"""EPDMS on held-out generated scenes, with a scene's own images and with other scenes' images.

python -m lightning_cgrpo export -c configs/navsim.yaml --out models/trained
python -m benchmarks.navsim.eyes models/trained docs/results/navsim/eyes.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.navsim.answers import Driver, test_prompts
from lightning_cgrpo import GeneratedScenes
from lightning_cgrpo.tasks.driving.task import DrivingTask

SHOWN = ("epdms", "wat", "no_at_fault_collisions", "drivable_area_compliance", "driving_direction_compliance", "ade")
Chat = list[dict[str, Any]]


def measure(model: str, scenes: int, answers: int, swapped: bool) -> dict[str, torch.Tensor]:
    """Values ``[scenes, answers]``, NaN where a signal doesn't apply; `swapped`: other scenes' images, same draws."""
    driver, task = Driver(model, answers, temperature=1.0), DrivingTask()
    found: dict[str, list[torch.Tensor]] = {name: [] for name in SHOWN}
    for prompts in test_prompts(GeneratedScenes(seed=1), scenes):
        if swapped:
            prompts.columns["prompt"] = with_images_of_others(prompts.columns["prompt"])
        signals = task.score(prompts, driver(prompts))
        for name in SHOWN:
            signal = signals[name]
            value = signal.value.double()
            applies = torch.ones_like(value, dtype=torch.bool) if signal.applicable is None else signal.applicable
            found[name].append(value.where(applies, torch.nan))
    return {name: torch.cat(values) for name, values in found.items()}


def with_images_of_others(prompts: Sequence[Chat]) -> list[Chat]:
    """Each chat with the previous chat's images (the first: the last's)."""
    images = [
        [part["image"] for message in chat for part in message["content"] if part["type"] == "image"]
        for chat in prompts
    ]
    changed = []
    for chat, other in zip(prompts, [images[-1], *images[:-1]], strict=True):
        left = iter(other)
        changed.append(
            [
                message
                | {
                    "content": [
                        part | {"image": next(left)} if part["type"] == "image" else part for part in message["content"]
                    ]
                }
                for message in chat
            ]
        )
    return changed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a directory")
    parser.add_argument("out", type=Path, help="JSON file")
    parser.add_argument("--scenes", type=int, default=1000)
    parser.add_argument("--answers", type=int, default=2, help="to each")
    options = parser.parse_args()
    torch.set_num_threads(1)
    own, swapped = (measure(options.model, options.scenes, options.answers, swap) for swap in (False, True))
    falls = (own["epdms"] - swapped["epdms"]).mean(1)
    result: dict[str, Any] = {
        "scenes": options.scenes,
        "answers": options.answers,
        "own": {name: float(values.nanmean()) for name, values in own.items()},
        "swapped": {name: float(values.nanmean()) for name, values in swapped.items()},
        "epdms_falls_by": float(falls.mean()),
        "standard_error": float(falls.std() / options.scenes**0.5),
    }
    print(json.dumps(result, indent=1))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
