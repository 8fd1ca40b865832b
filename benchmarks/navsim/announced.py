"""How many of the start's collisions an observation announces, by the scenes' truth.

    python -m benchmarks.navsim.announced

Validation scenes of configs/navsim.yaml with four answers each, scored as in training. An observation announces a
violation of NC if the struck agent is the one that the observation names. The second table tells how often an
observation names any agent, in scenes with and without a violation.
"""

from __future__ import annotations

import argparse
from collections import Counter
from statistics import fmean

import torch

from benchmarks.navsim.answers import FORM, Driver
from benchmarks.navsim.braking import ANSWERS, as_training, poses_of, prompts_of
from benchmarks.navsim.causes import struck
from driving_scenes.generator import GeneratedScenes
from driving_scenes.scene import Scene
from driving_scenes.source import Scenes
from lightning_cgrpo.datamodules.base import evenly_spaced
from lightning_cgrpo.tasks.driving.answers import POSE_INTERVAL
from lightning_cgrpo.tasks.driving.moving_observations import noticed
from lightning_cgrpo.tasks.driving.observations import nearest
from navsim_score.columns import SHORT
from navsim_score.route.lane_ahead import lane_ahead

ALL = "all"
OLD, AHEAD, MOVING = "Observations", "MovingObservations, ahead", "MovingObservations"


def named(scene: Scene) -> dict[str, set[str]]:
    """Tokens of the agents that each observation names."""
    ahead = lane_ahead(scene)
    start = float(ahead.path.project(ahead.road.position))
    old, (present, entering) = nearest(scene, ahead, start), noticed(scene, ahead, start)
    return {
        OLD: {old.token} if old else set(),
        AHEAD: {present.token} if present else set(),
        MOVING: {one.token for one in (present, entering) if one},
    }


def announced(count: int) -> tuple[dict[str, Counter[str]], dict[str, dict[bool, list[bool]]]]:
    """Violations by kind of agent, in all and announced; whether an observation names any agent, by violation."""
    driver = Driver("packaged:driver", ANSWERS)
    scenes = GeneratedScenes(seed=1).scenes("val")
    violations: dict[str, Counter[str]] = {name: Counter() for name in (ALL, OLD, AHEAD, MOVING)}
    says: dict[str, dict[bool, list[bool]]] = {name: {True: [], False: []} for name in (OLD, AHEAD, MOVING)}
    for prompts in prompts_of(Scenes(evenly_spaced(len(scenes), count), scenes.__getitem__), FORM):
        scorer, poses = as_training(prompts), poses_of(driver, prompts)
        row = torch.arange(len(prompts)).repeat_interleave(ANSWERS)
        scores = scorer(poses, row, POSE_INTERVAL)
        violates = scores.columns[SHORT["NC"]] < 1  # not malformed answers, which strike nobody
        for number, scene in enumerate(prompts.columns["scene"]):
            agents = named(scene)
            rows = [answer for answer in range(number * ANSWERS, (number + 1) * ANSWERS) if violates[answer]]
            for name, tokens in agents.items():
                says[name][bool(rows)].append(bool(tokens))
            for answer in rows:
                hit = struck(scorer, scores, answer, number, poses)
                kind = next(iter(hit.values()))
                violations[ALL][kind] += 1
                for name, tokens in agents.items():
                    violations[name][kind] += not tokens.isdisjoint(hit)
    return violations, says


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenes", type=int, default=400)
    torch.set_num_threads(1)
    violations, says = announced(parser.parse_args().scenes)
    for name, counts in violations.items():
        print(f"{name}: {counts.total()} of {violations[ALL].total()}", dict(counts))
    for name, by_violation in says.items():
        told = {("violates" if key else "complies"): round(fmean(values), 3) for key, values in by_violation.items()}
        print(f"{name} names an agent in scenes where the start", told)


if __name__ == "__main__":
    main()
