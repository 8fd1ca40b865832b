"""The reward function for TRL beside the scorer."""

import pytest
import torch

from examples.trl_driving_reward import TrajectoryReward
from lightning_cgrpo.tasks.driving.answers import POSE_INTERVAL, AnswerFormat
from navsim_score.dialects import EPDMS
from navsim_score.scorer import Scorer
from tests.driving_scenes.scenes import agent, straight_road

SCENES = {"free": straight_road(), "wall": straight_road([agent("wall", 24.0, -1.75)], human_trajectory=None)}
STRAIGHT = "[8.0,0.0], [16.0,0.0], [24.0,0.0], [32.0,0.0]"
SHORT = "I stop. [6.0,0.0], [9.0,0.0], [10.0,0.0], [10.0,0.0]"


def test_rewards_are_the_scorers_in_the_order_of_the_completions():
    completions = [STRAIGHT, [{"role": "assistant", "content": STRAIGHT}], "no plan", SHORT]
    names = ["wall", "free", "free", "wall"]
    reward = TrajectoryReward(SCENES, total=EPDMS, human_filter=True)
    found = reward(completions=completions, scene=names, prompts=["…"] * 4)
    poses = AnswerFormat().trajectories([STRAIGHT, SHORT])
    wall = Scorer([SCENES["wall"]])(poses, torch.tensor([0, 0]), POSE_INTERVAL).epdms
    free = Scorer([SCENES["free"]])(poses[:1], torch.tensor([0]), POSE_INTERVAL).epdms
    assert found == pytest.approx([float(wall[0]), float(free[0]), 0.0, float(wall[1])])
    assert found[0] == 0 < found[3] and found[1] > 0.9
    assert TrajectoryReward(SCENES)([STRAIGHT], scene=["wall"])[0] > 0  # by default the weighted terms alone
