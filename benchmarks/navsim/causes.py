"""What a driver strikes: NC's violations by the struck agent, scored as in training (log replay, no human filter).

    python -m benchmarks.navsim.causes packaged:driver models/trained

The 1,000 test scenes of configs/navsim.yaml, with an answer to each.
"""

from __future__ import annotations

import re
import sys
from collections import Counter

import torch
from torch import Tensor

from benchmarks.navsim.answers import Driver, test_prompts
from lightning_cgrpo import GeneratedScenes
from lightning_cgrpo.tasks.completions import texts
from lightning_cgrpo.tasks.driving.answers import POSE_INTERVAL, AnswerFormat
from navsim_score.columns import SHORT
from navsim_score.explanation import explain
from navsim_score.scorer import Scorer, Scores
from navsim_score.traffic.log_replay import LogReplay

SCENES = 1000
AGENT = re.compile(r"hits the (\w[\w ]*?) (\S+) \(([\d.]+) m/s\)")
"""An agent in an explanation: kind, token, speed."""


def causes(model: str) -> Counter[str]:
    """Violations by kind of agent; ``answers`` counts all."""
    driver, counts = Driver(model, answers=1), Counter[str]()
    for prompts in test_prompts(GeneratedScenes(seed=1), SCENES):
        poses = AnswerFormat().trajectories([text for group in texts(driver(prompts)) for text in group])
        scorer = Scorer(prompts.columns["scene"], LogReplay(), plans=prompts.columns["plan"], human_filter=False)
        scores = scorer(poses, torch.arange(len(poses)), POSE_INTERVAL)
        counts["answers"] += len(poses)
        for row in (scores.columns[SHORT["NC"]] < 1).nonzero()[:, 0].tolist():
            counts["violations"] += 1
            counts.update({*struck(scorer, scores, row, row, poses).values()})
    return counts


def struck(scorer: Scorer, scores: Scores, row: int, scene: int, poses: Tensor) -> dict[str, str]:
    """The agents that a plan of `poses` ``[R, P, 3]`` strikes at fault: kind by token."""
    lines = explain(scorer, scores, row, scene, poses[row, 1::2])
    [sentence] = [line for line in lines if line.startswith("NC")]
    return {token: _kind(agent, speed) for agent, token, speed in AGENT.findall(sentence)}


def _kind(agent: str, speed: str) -> str:
    if agent != "vehicle":
        return agent
    return "standing vehicle" if float(speed) < 0.1 else "moving vehicle"


if __name__ == "__main__":
    torch.set_num_threads(1)
    for model in sys.argv[1:]:
        print(model, dict(causes(model)))
