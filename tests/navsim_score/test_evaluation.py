"""Planners' scores of both stages, and their displacement from the human."""

import pytest
import torch

from driving_scenes.generator import GeneratedScenes
from lightning_cgrpo.tasks.driving.answers import POSE_INTERVAL, AnswerFormat
from navsim_score.dialects import EPDMS, OFF, Epdms
from navsim_score.evaluation import average_displacement, evaluate, human
from navsim_score.scorer import Scorer
from navsim_score.simulation.interpolation import resample
from navsim_score.traffic.log_replay import LogReplay
from tests.driving_scenes.scenes import agent, straight_road
from tests.navsim_score.devkit_scenes import WALL


def test_displacement():
    scene = straight_road(human_trajectory=WALL)
    plan = torch.zeros(2, 16, 3, dtype=torch.float64)
    plan[:, :, 0] = 2.0 * torch.arange(1, 17)
    plan[1, :, 1] = 3.0
    found = average_displacement([scene, straight_road(human_trajectory=None)], torch.stack([plan, plan]), 0.25)
    assert found[0].tolist() == [0.0, 3.0]
    assert bool(found[1].isnan().all())


@pytest.mark.parametrize(
    "form", [AnswerFormat(2, 0.25), AnswerFormat(2, 0.125), AnswerFormat(3, 0.25), AnswerFormat(2)]
)
def test_a_plan_that_ends_early_stands_there(form):
    """Where the simulated car's reference is, too."""
    scene = straight_road(human_trajectory=[[4.0 * n, 0.3 * n, 0.0] for n in range(1, 9)])
    poses = form.poses(torch.tensor([[[1.0, 0.1], [2.5, 0.2], [4.5, 0.6]][: form.waypoints]], dtype=torch.float64))
    driven = resample(torch.zeros(1, 3, dtype=torch.float64), poses, POSE_INTERVAL)[:, 5::5, :2]
    found = average_displacement([scene], poses[None], POSE_INTERVAL)
    torch.testing.assert_close(found[0], (driven - scene.human[:, :2]).norm(dim=-1).mean(-1), rtol=0, atol=1e-9)


@pytest.mark.slow
def test_planners_of_generated_scenes():
    source = GeneratedScenes(1, 3, follow_ups=2)
    scenes, after = list(source.scenes("test")), [list(group) for group in source.follow_ups("test")]
    found = evaluate(scenes, after)
    assert list(found) == ["PDM-Closed", "constant velocity", "human"]
    assert found["human"].second is None
    assert found["human"].first.columns["ADE@4s"] == 0
    assert found["PDM-Closed"].second.scenes == sum(map(len, after))
    assert found["PDM-Closed"].epdms > found["constant velocity"].epdms
    alone = evaluate(scenes, planners={"human": human}, traffic=LogReplay())["human"].first.columns["EPDMS"]
    poses = torch.stack([scene.human for scene in scenes])
    assert alone == pytest.approx(float(Scorer(scenes)(poses, torch.arange(3)).epdms.mean()))


def test_the_human_filter_and_the_traffic_reach_the_scores():
    """What the human hits isn't held against others, unless that is asked for."""
    wall = straight_road([agent("wall", 12.0, -1.75, size=(2.0, 2.0))], human_trajectory=WALL)
    found = [evaluate([wall], dialect=dialect)["constant velocity"] for dialect in (EPDMS, Epdms(OFF))]
    names = [f"{name}, one stage, Reactive" for name in ("EPDMS", "EPDMS without human filter")]
    assert [one.dialect for one in found] == names
    filtered, unfiltered = (one.first for one in found)
    assert (filtered.columns["NC"], unfiltered.columns["NC"]) == (1.0, 0.0)
