"""Words for scores, on scenes where the reason is known."""

import pytest
import torch

from driving_scenes.generator.rigid_motion import moved
from navsim_score.explanation import explain
from navsim_score.scorer import Scorer
from tests.driving_scenes.scenes import agent, crossing, straight, straight_road
from tests.navsim_score.devkit_scenes import candidates, scenes


def words(scene, poses, **options):
    scorer = Scorer([scene], **options)
    scores = scorer(poses[None], torch.zeros(1, dtype=torch.int64))
    found = explain(scorer, scores, 0, 0, poses)
    return {line.split(" ")[0]: line for line in found}


def test_a_collision_names_object_time_rule_and_human():
    found = words(scenes()["human_hits"], candidates()[0])
    line = found["NC"]
    assert line.startswith("NC 0: At 2.3 s") and "the vehicle wall (0.0 m/s)" in line
    assert "a contact with an agent that stood when it was first seen is the ego's fault" in line
    assert line.endswith("The human has 0 too, so the human filter sets this sub-score to 1.")
    assert "ahead" in found["TTC"] and "in 0." in found["TTC"]


def test_a_moving_agent_is_hit_with_the_front_bumper():
    scene = straight_road([agent("slow", 20.0, -1.75, speed=2.0)], human_trajectory=None)
    line = words(scene, straight())["NC"]
    assert "the vehicle slow (2.0 m/s): a contact with the front bumper" in line
    assert "no human to filter by" in line
    assert "human" not in words(scene, straight(), human_filter=False)["NC"]


@pytest.mark.parametrize(
    ("scene", "poses", "short", "words_of"),
    [
        (straight_road(), straight(left=-6.0), "DAC", "leaves the drivable surface. The human has"),
        (straight_road(), straight(left=7.0), "DDC", "off the lanes of the route"),
        (straight_road(), straight(left=3.5), "LK", "more than 0.5 m off the centerline for 2 s"),
        (crossing(human_trajectory=None), straight(left=0.0), "TLC", "while its light is red"),
        (straight_road(), straight(acceleration=4.0), "HC", "longitudinal acceleration (-4.05 to 2.4)"),
    ],
)
def test_each_rule_is_named(scene, poses, short, words_of):
    assert words_of in words(scene, poses)[short]


def test_progress_is_told_in_meters():
    line = words(straight_road(), straight(acceleration=-2.0))["EP"]
    assert "The ego makes 17.4 m" in line and "PDM-Closed" in line


def test_a_malformed_and_a_perfect_plan():
    scene = straight_road()
    scorer = Scorer([scene])
    plans = torch.stack([torch.full((8, 3), torch.nan), straight(acceleration=0.8)])
    scores = scorer(plans, torch.tensor([0, 0]))
    assert "malformed" in explain(scorer, scores, 0, 0, plans[0])[0]
    assert bool(scores.epdms[1] == 1) and explain(scorer, scores, 1, 0, plans[1]) == ["All sub-scores are 1."]


def test_places_are_seen_from_the_start_wherever_the_map_begins():
    """The car hits the standing vehicle, whose center is 20 m ahead of its rear axle."""
    scene = straight_road([agent("slow", 20.0, -1.75, speed=0.0)], human_trajectory=None)
    turned = moved(scene, 2.0, (1000.0, -500.0))
    assert words(turned, straight())["NC"] == words(scene, straight())["NC"]
    forward = float(words(scene, straight())["NC"].split(" m/s, ")[1].split(" m ahead of its start")[0])
    assert 12 < forward < 18


def test_a_plan_that_cannot_be_driven():
    scene = straight_road(human_trajectory=None)
    scorer = Scorer([scene])
    plans = torch.stack([straight() + torch.tensor([0.0, -3.0, 0.0]), straight() * torch.tensor([-1.0, 1.0, 1.0])])
    scores = scorer(plans, torch.tensor([0, 0]))
    beside, backward = (explain(scorer, scores, row, 0, plans[row])[0] for row in range(2))
    assert beside == "Plan: Its first pose, at 0.5 s, is 3.0 m to the right of the ego, which steers towards it."
    assert backward.startswith(f"Plan: It goes {-float(plans[1, -1, 0]):.1f} m backward. The simulated ego ends ")
    assert backward.endswith(f"{-float(scores.states[1, -1, 0] - scores.states[1, 0, 0]):.1f} m behind its start.")
