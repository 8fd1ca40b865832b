"""How much better a driver is than another on the same scenes, with 95 % intervals over scenes.

    python -m benchmarks.navsim.paired BEFORE/scores.json AFTER/scores.json...

Several files after the first (seeds) are averaged by scene. The interval is Student's. It holds for scenes, not for
seeds, whose own differences are printed beside it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import fmean

from lightning_cgrpo.cli.study.comparison import difference

STAGES = ("first stage", "both stages")


def main(before: str, *after: str) -> None:
    start, *seeds = (json.loads(Path(file).read_text())["scenes"]["policy"] for file in (before, *after))
    if any(seed.keys() != start.keys() for seed in seeds):
        sys.exit("Expected the same scenes in all files, try the same data.scenes.seed and data.test_prompts.")
    for stage, name in enumerate(STAGES):
        scenes = [scene for scene, values in start.items() if values[stage] is not None]
        if not scenes:  # a test without follow-ups has one stage
            continue
        first = dict(enumerate(start[scene][stage] for scene in scenes))
        others = [dict(enumerate(seed[scene][stage] for scene in scenes)) for seed in seeds]
        mean = {row: fmean(other[row] for other in others) for row in first}
        gain, each = difference(first, mean), [difference(first, other) for other in others]
        told = ", ".join(f"{one.mean:+.3f}" for one in each if one)
        print(f"{name}: {str(gain).strip('*')} over {len(scenes)} scenes; seeds {told}")


if __name__ == "__main__":
    main(*sys.argv[1:])
