"""How much better a driver is than another on the same scenes, with 95 % intervals over scenes.

    python -m benchmarks.navsim.paired BEFORE/scores.json AFTER/scores.json...

Several files after the first (seeds) are averaged by scene. The interval is Student's. It holds for scenes, not for
seeds, whose own differences are printed beside it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from scipy.stats import t

STAGES = ("first stage", "both stages")


def main(before: str, *after: str) -> None:
    start, *seeds = (json.loads(Path(file).read_text())["scenes"]["policy"] for file in (before, *after))
    for stage, name in enumerate(STAGES):
        scenes = [scene for scene, values in start.items() if values[stage] is not None]
        gains = np.array([[seed[scene][stage] - start[scene][stage] for scene in scenes] for seed in seeds])
        middle, low, high = paired(gains.mean(0))
        each = ", ".join(f"{gain:+.3f}" for gain in gains.mean(1))
        print(f"{name}: {middle:+.3f} ({low:+.3f} to {high:+.3f}) over {len(scenes)} scenes; seeds {each}")


def paired(gains: np.ndarray) -> tuple[float, float, float]:
    """Mean and 95 % interval of differences ``[N]``."""
    middle, error = float(gains.mean()), float(gains.std(ddof=1)) / len(gains) ** 0.5
    width = float(t.ppf(0.975, len(gains) - 1)) * error
    return middle, middle - width, middle + width


if __name__ == "__main__":
    main(*sys.argv[1:])
