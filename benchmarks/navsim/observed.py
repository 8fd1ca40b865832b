"""How often a driver's written observations are right: `MovingObservations` of the scene, beside those of its answers.

    python -m benchmarks.navsim.observed packaged:driver-moving

One answer to each of 400 test scenes of configs/navsim.yaml. By field: how often scene and answer both name something
(``both``), neither, the scene alone (``missed``) or the answer alone (``invented``). A number of ``both`` is right
within a fifth of the scene's, or within 2 m, 2 m/s or 0.5 s.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter

import torch

from benchmarks.navsim.answers import MOVING_FORM, Driver, test_prompts
from driving_scenes.generator import GeneratedScenes
from lightning_cgrpo.tasks.completions import texts
from lightning_cgrpo.tasks.driving.moving_observations import MovingObservations

FIELDS = {
    "Ahead": (r"Ahead: (?:none|(\S+) (\S+))\.", ("distance", "speed")),
    "In": (r"In: (?:none|(\S+) (\S+))\.", ("distance", "time")),
    "Light": (r"Light: (?:none|\w+ (\S+))\.", ("distance",)),
}
NEAR = {"distance": 2.0, "speed": 2.0, "time": 0.5}
Read = tuple[float, ...] | None
"""The numbers of a field; empty for ``none``; None if the field isn't written as agreed."""


def read(text: str, pattern: str) -> Read:
    match = re.search(pattern, text)
    if match is None:
        return None
    try:
        return tuple(float(number) for number in match.groups() if number is not None)
    except ValueError:
        return None


def count(model: str, scenes: int) -> Counter[tuple[str, str]]:
    """Answers by field and outcome."""
    driver, observations, counts = Driver(model, 1, MOVING_FORM), MovingObservations(), Counter[tuple[str, str]]()
    for prompts in test_prompts(GeneratedScenes(seed=1), scenes, MOVING_FORM):
        answers = [text for group in texts(driver(prompts)) for text in group]
        for scene, answer in zip(prompts.columns["scene"], answers, strict=True):
            truth = observations(scene)
            for field, (pattern, units) in FIELDS.items():
                right, said = read(truth, pattern), read(answer, pattern)
                if said is None:
                    counts[field, "malformed"] += 1
                elif not right or not said:
                    counts[field, outcome(bool(right), bool(said))] += 1
                else:
                    counts[field, "both"] += 1
                    for unit, one, other in zip(units, right, said, strict=True):
                        counts[field, f"right {unit}"] += abs(one - other) <= max(NEAR[unit], 0.2 * abs(one))
    return counts


def outcome(present: bool, named: bool) -> str:
    if present:
        return "missed"
    return "invented" if named else "neither"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a directory, or packaged:driver-moving")
    parser.add_argument("--scenes", type=int, default=400)
    options = parser.parse_args()
    torch.set_num_threads(1)
    counts = count(options.model, options.scenes)
    for field in FIELDS:
        print(f"{field}:", {name: number for (one, name), number in counts.items() if one == field})


if __name__ == "__main__":
    main()
