"""Milliseconds per scored candidate, by batch size and traffic.

    python -m benchmarks.driving.speed        # about a minute; fails above 1.0 ms (log replay) or 8 ms (reactive)

Times are CPU seconds on one thread, the least of several runs; other load still inflates them. The whole batch has
32 scenes with 16 candidates each: the human's path at other speeds, shifted sideways. Scenes are generated, and
from shared Argoverse 2 logs if present (folder `LIGHTNING_CGRPO_SHARED`, by default ../shared).
The official scorer takes 30-50 ms with log replay and 290-400 ms with reactive traffic
(docs/navsim_score_scenes.md §16).
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from driving_scenes.generator import GeneratedScenes
from driving_scenes.scene import Scene
from examples.scene_sources.argoverse2 import Argoverse2
from navsim_score.scorer import Scorer
from navsim_score.traffic.log_replay import LogReplay
from navsim_score.traffic.reactive import Reactive
from navsim_score.traffic.traffic import TrafficPolicy

SCENES, CANDIDATES = 32, 16
BATCHES = (1, 16, 64, 128, 512)
POLICIES: dict[str, tuple[type[TrafficPolicy], float]] = {"log replay": (LogReplay, 1.0), "reactive": (Reactive, 8.0)}
"""Each policy with its most milliseconds per candidate."""
SHARED = Path(os.environ.get("LIGHTNING_CGRPO_SHARED", Path(__file__).resolve().parents[3] / "shared")) / "data"


def candidates(scenes: Sequence[Scene], seed: int = 0) -> Tensor:
    """Paths ``[scenes * CANDIDATES, 8, 3]`` in the egos' frames, scene by scene."""
    generator = torch.Generator().manual_seed(seed)
    humans = torch.stack([scene.human for scene in scenes if scene.human is not None])
    poses = humans.repeat_interleave(CANDIDATES, 0)
    share = torch.rand(len(poses), 2, generator=generator, dtype=torch.float64)
    poses = poses * (0.3 + share[:, :1, None]) * torch.tensor([1, 1, 0]) + poses * torch.tensor([0, 0, 1])
    poses[..., 1] += (share[:, 1:] - 0.5) * torch.linspace(0.5, 4, 8, dtype=torch.float64)
    return poses


def least(run: Callable[[], object], times: int) -> float:
    seconds = []
    for _ in range(times):
        begun = time.process_time()
        run()
        seconds.append(time.process_time() - begun)
    return min(seconds)


def measure(name: str, scenes: Sequence[Scene], repeats: int) -> dict[str, float]:
    """Print a table; return the whole batch's milliseconds per candidate, by traffic."""
    poses, row = candidates(scenes), torch.arange(len(scenes)).repeat_interleave(CANDIDATES)
    agents = sum(len(scene.agents.tokens) for scene in scenes) / len(scenes)
    polygons = sum(len(scene.map.lanes.ids) + len(scene.map.roadblocks.ids) for scene in scenes) / len(scenes)
    print(f"\n{name}: {len(scenes)} scenes of {agents:.0f} agents, {polygons:.0f} lanes and roadblocks (mean)")
    print("".join(["milliseconds per candidate, of a batch of".ljust(42), *(f"{n:8d}" for n in BATCHES)]))
    milliseconds = {}
    for label, (policy, _) in POLICIES.items():
        begun = time.process_time()
        scorer = Scorer(scenes, policy())
        prepared = (time.process_time() - begun) / len(scenes)
        times = []
        for count in BATCHES:
            run = partial(scorer, poses[:count], row[:count])
            run()
            times.append(least(run, repeats) / min(count, len(row)) * 1e3)
        milliseconds[label] = times[-1]
        print("".join([f"  {label}".ljust(42), *(f"{each:8.2f}" for each in times)]))
        print(f"  preparing a scene: {prepared * 1e3:.1f} ms")
    return milliseconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    sets = {"generated": GeneratedScenes().scenes("train")[:SCENES]}
    if (SHARED / "driving/argoverse2").is_dir():
        sets["Argoverse 2"] = Argoverse2(SHARED / "driving/argoverse2", val_share=0, test_share=0).scenes("train")[
            :SCENES
        ]
    for name, lazy in sets.items():
        scenes = list(lazy)
        for label, milliseconds in measure(name, scenes, arguments.repeats).items():
            bound = POLICIES[label][1]
            assert milliseconds <= bound, f"{name}, {label}: {milliseconds:.2f} ms, expected at most {bound}"


if __name__ == "__main__":
    main()
