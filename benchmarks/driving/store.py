"""CPU seconds of `NavsimSignals` on 128 scenes with 16 candidates each, from a store, on one thread.

    OMP_NUM_THREADS=1 python -m benchmarks.driving.store           # half a minute; fails above 1 s for a batch

The scenes are generated. The first call opens each scene for the first time, from a memory map that the system may hold
in its memory; later calls have opened them before. "One scene at a time" scores the same candidates with a new `Scorer`
for each scene, as a loop with the devkit's caches does after their conversion. Times are CPU seconds of this process,
because other load inflates the wall's, which is printed beside them.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.driving.speed import candidates
from driving_scenes.generator import GeneratedScenes
from navsim_score.columns import COLUMNS
from navsim_score.provenance import Provenance, scorer_version
from navsim_score.scorer import Scorer
from navsim_score.signals import NAMES, NavsimSignals
from navsim_score.store.preparing import prepared
from navsim_score.store.store import RECORDS, write_store

SCENES, CANDIDATES = 128, 16
MOST = 1.0
"""CPU seconds of a batch."""
RESULT = Path(__file__).parents[1] / "results" / "store.json"


def timed(run: Callable[[], object]) -> tuple[float, float, object]:
    """CPU seconds, seconds on the wall, and the result."""
    cpu, wall = time.process_time(), time.perf_counter()
    result = run()
    return time.process_time() - cpu, time.perf_counter() - wall, result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.name}")
    options = parser.parse_args()
    torch.set_num_threads(1)
    scenes = list(GeneratedScenes().scenes("train")[:SCENES])
    tokens = [scene.name for scene in scenes]
    poses = candidates(scenes).unflatten(0, (SCENES, CANDIDATES))

    with tempfile.TemporaryDirectory() as folder:
        provenance = Provenance("generated scenes", None, scorer_version(), "")
        preparing, _, known = timed(lambda: write_store(folder, map(prepared, scenes), provenance))
        size = os.path.getsize(Path(folder) / RECORDS)
        opening, _, signals = timed(lambda: NavsimSignals(folder))
        assert isinstance(signals, NavsimSignals)
        first, first_wall, found = timed(lambda: signals(poses, tokens))
        later = [timed(lambda: signals(poses, tokens))[:2] for _ in range(options.repeats)]

    # The same candidates, one scene at a time.
    alone: dict[str, list[Tensor]] = {name: [] for name in COLUMNS}

    def one_by_one() -> None:
        for scene, of_scene in zip(scenes, poses, strict=True):
            scores = Scorer([scene])(of_scene, torch.zeros(CANDIDATES, dtype=torch.int64))
            for name in COLUMNS:
                alone[name].append(scores.columns[name])

    single, _, _ = timed(one_by_one)
    assert isinstance(found, dict)
    differences = {}
    for name in COLUMNS:
        differences[name] = float((torch.stack(alone[name]) - found[NAMES[name]]).abs().max())
    result = {
        "scenes": SCENES,
        "candidates": SCENES * CANDIDATES,
        "threads": torch.get_num_threads(),
        "provenance": str(known),
        "bytes of a scene": size // SCENES,
        "CPU seconds": {
            "preparing the store": preparing,
            "opening the store": opening,
            "first batch": first,
            "later batch (least)": min(cpu for cpu, _ in later),
            "later batch (most)": max(cpu for cpu, _ in later),
            "one scene at a time, planned and prepared each time": single,
        },
        "wall seconds": {"first batch": first_wall, "later batch (least)": min(wall for _, wall in later)},
        "largest difference from one scene at a time": differences,
    }
    text = json.dumps(result, indent=1)
    print(text)
    if options.write:
        RESULT.write_text(text + "\n", encoding="utf-8")
    assert max(first, min(cpu for cpu, _ in later)) <= MOST, f"expected at most {MOST} CPU seconds"


if __name__ == "__main__":
    main()
