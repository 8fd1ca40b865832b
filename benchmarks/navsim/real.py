"""Official scores of policies and reference drivers on Argoverse 2's logs, paired by scene, and without each log.

python -m lightning_cgrpo export -c configs/navsim.yaml --out models/trained
python -m benchmarks.navsim.real FOLDER docs/results/navsim/argoverse2.json packaged:driver models/trained
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from benchmarks.navsim.answers import Driver, test_prompts
from driving_scenes.source import SceneSource
from examples.scene_sources.argoverse2 import Argoverse2
from lightning_cgrpo.cli.study.comparison import difference
from lightning_cgrpo.tasks.completions import texts
from lightning_cgrpo.tasks.driving.answers import POSE_INTERVAL
from lightning_cgrpo.tasks.driving.task import DrivingTask
from navsim_score.dialects import EPDMS
from navsim_score.evaluation import BASELINES, drives, planned_drives
from navsim_score.scorer import Scorer
from navsim_score.tables import SHOWN
from navsim_score.traffic.reactive import Reactive
from navsim_score.two_stage import Drive, summary

ANSWERS = 4
Scores = dict[str, float]  # EPDMS by scene


def measure(scenes: SceneSource, models: list[str]) -> dict[str, list[Drive]]:
    """Drives by driver: `models` with `ANSWERS` plans a scene, the reference drivers with one."""
    driven: dict[str, list[Drive]] = {name: [] for name in (*models, *BASELINES)}
    drivers, answer = {model: Driver(model, ANSWERS) for model in models}, DrivingTask().answer
    for prompts in test_prompts(scenes, None):
        numbers = prompts.index.tolist()
        scorer = Scorer(prompts.columns["scene"], Reactive(), human_filter=True)
        for name, planned in planned_drives(scorer, BASELINES, numbers).items():
            driven[name] += planned
        for model, driver in drivers.items():
            poses = answer.trajectories([text for group in texts(driver(prompts)) for text in group])
            plans = poses.unflatten(0, (len(numbers), -1))
            row = torch.arange(len(numbers)).repeat_interleave(ANSWERS)
            scores = scorer(poses, row, POSE_INTERVAL)
            driven[model] += drives(scorer.batch.scenes, scores, plans, POSE_INTERVAL, numbers)
    return driven


def report(by_driver: Mapping[str, list[Drive]], first: str) -> dict[str, Any]:
    """Mean columns and EPDMS by scene of each driver, and differences of EPDMS to the driver `first`."""
    result: dict[str, Any] = {}
    for name, driven in by_driver.items():
        stage = summary(driven, EPDMS, Reactive()).first
        result[name] = {"scenes": stage.scenes, "malformed": stage.malformed, **stage.columns}
        result[name]["by_scene"] = {
            drive.name: summary([drive], EPDMS, Reactive()).first.columns["EPDMS"] for drive in driven
        }
    start: Scores = result[first]["by_scene"]
    for name in by_driver:
        scores: Scores = result[name]["by_scene"]
        apart = difference(dict(enumerate(start.values())), {row: scores[scene] for row, scene in enumerate(start)})
        if name != first and apart is not None:
            low, high = apart.mean - apart.half, apart.mean + apart.half
            result[name]["difference"] = {"mean": apart.mean, "low": low, "high": high}
            result[name]["difference_without_log"] = {
                log: fmean(scores[scene] - start[scene] for scene in scores if log_of(scene) != log)
                for log in sorted({log_of(scene) for scene in scores})
            }
    return result


def log_of(scene: str) -> str:
    """The log in a scene's name, ``av2_LOG_TIME``."""
    return scene.split("_")[1]


def table(result: Mapping[str, Any], first: str) -> str:
    """Markdown of `report`."""
    shown = [column for column in SHOWN if all(driver[column] is not None for driver in result.values())]
    heads = ["", *shown, "malformed", f"EPDMS less that of {first} (95 %)", "without each log"]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for name, driver in result.items():
        cells = [name, *(f"{driver[column]:.3f}" for column in shown), f"{driver['malformed']:.3f}"]
        if "difference" in driver:
            apart = driver["difference"]
            cells.append(f"{apart['mean']:+.3f} ({apart['low']:+.3f} to {apart['high']:+.3f})")
            cells.append(", ".join(f"{value:+.3f}" for value in driver["difference_without_log"].values()))
        else:
            cells += ["", ""]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logs", type=Path, help="folder of Argoverse 2 logs")
    parser.add_argument("out", type=Path, help="JSON file")
    parser.add_argument("models", nargs="+", help="directories; differences are to the first")
    options = parser.parse_args()
    torch.set_num_threads(1)
    scenes = Argoverse2(options.logs, val_share=0, test_share=1)
    result = report(measure(scenes, options.models), options.models[0])
    print(table(result, options.models[0]))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
